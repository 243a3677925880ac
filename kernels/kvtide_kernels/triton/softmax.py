"""The softmax over tiles, by powers of two: log2(e) is folded into what scores are multiplied with."""

import triton
import triton.language as tl


@triton.jit
def logits(scores, scale, cap, CAPPED: tl.constexpr):
    """Scores in units of log2: times scale * log2(e); or where they are capped cap * tanh(scale * score / cap) is.

    scale: of the scores times log2(e); where CAPPED, of the scores / cap. cap: times log2(e)
    """
    x = scores * scale
    if CAPPED:
        # tanh x = 1 - 2 / (e^(2x) + 1), which is right at both ends: 1 for an overflow, -1 for an underflow.
        x = cap * (1.0 - 2.0 / (tl.exp2(x * 2.8853900817779268) + 1.0))
    return x


@triton.jit
def weigh(x, top):
    """One tile's step: (weights, the new maximum, what earlier sums are multiplied with).

    x [M, TILE] has -inf where a row does not look. A row that has seen nothing has the maximum -inf.
    """
    new_top = tl.maximum(top, tl.max(x, 1))
    base = tl.where(new_top == float("-inf"), 0.0, new_top)
    return tl.exp2(x - base[:, None]), new_top, tl.exp2(top - base)


@triton.jit
def normalise(values, top, total, sinks, mask, SINKS: tl.constexpr):
    """Sums [M, WIDTH] by their weights' total; a head's sink (a logit in units of e) joins the total only.

    sinks: pointers [M]
    """
    if SINKS:
        sink = tl.load(sinks, mask=mask, other=0.0).to(tl.float32) * 1.4426950408889634
        higher = tl.maximum(top, sink)
        shrink = tl.exp2(top - higher)
        values *= shrink[:, None]
        total = total * shrink + tl.exp2(sink - higher)
    return values / tl.where(total == 0.0, 1.0, total)[:, None]
