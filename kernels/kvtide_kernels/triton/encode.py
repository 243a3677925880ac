"""Packing vectors into a block: the encoder of every format, in registers."""

import triton
import triton.language as tl

from kvtide_kernels.triton.rotate import hadamard


@triton.jit
def _round_half_even(x):
    # 1.5 * 2^23: float32 has no bits behind the point there, and rounds to even. Exact for |x| < 2^22.
    return (x + 12582912.0) - 12582912.0


@triton.jit
def _levels(x, scale, low: tl.constexpr, high: tl.constexpr):
    scale = scale[:, None]
    # A vector of equal elements has no scale; what it would divide by is no matter, the levels are 0.
    level = tl.math.div_rn(x, tl.where(scale > 0, scale, 1.0))
    level = _round_half_even(tl.minimum(tl.maximum(level, low), high))
    return tl.where(scale > 0, level, 0.0)


@triton.jit
def store_vectors(
    x,
    head,
    row,
    live,
    ROWS: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    BITS: tl.constexpr,
    RUN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Encode float32 x [ROWS, WIDTH], of which DIM columns count, as the rows' tokens of their (block, head).

    head: pointers [ROWS] to the first byte of each row's (block, head); row: its place in the block; live: a mask.
    RUN: elements that are rotated together, or 0. The scale is rounded to float16 before it is used, as is the zero
    point, so that the decoder's values are what was rounded to.
    """
    columns = tl.arange(0, WIDTH)
    inside = columns[None, :] < DIM
    if RUN > 0:
        x = hadamard(x, ROWS, WIDTH, RUN)
    data = head + row * (DIM * BITS // 8)
    scales = (head + BLOCK * (DIM * BITS // 8)).to(tl.pointer_type(tl.float16)) + row
    if BITS == 16:
        where = data.to(tl.pointer_type(tl.bfloat16))[:, None] + columns[None, :]
        tl.store(where, x.to(tl.bfloat16), mask=live[:, None] & inside)
    elif BITS == 8:
        scale = (tl.max(tl.where(inside, tl.abs(x), 0.0), 1) / 127.0).to(tl.float16)
        level = _levels(x, scale.to(tl.float32), -127.0, 127.0)
        where = data.to(tl.pointer_type(tl.int8))[:, None] + columns[None, :]
        tl.store(where, level.to(tl.int8), mask=live[:, None] & inside)
        tl.store(scales, scale, mask=live)
    else:
        low = tl.min(tl.where(inside, x, float("inf")), 1)
        high = tl.max(tl.where(inside, x, float("-inf")), 1)
        scale = ((high - low) / 15.0).to(tl.float16)
        zero = low.to(tl.float16)
        level = _levels(x - zero.to(tl.float32)[:, None], scale.to(tl.float32), 0.0, 15.0).to(tl.int32)
        even, odd = tl.split(tl.reshape(level, (ROWS, WIDTH // 2, 2)))
        pairs = tl.arange(0, WIDTH // 2)
        where = data[:, None] + pairs[None, :]
        tl.store(where, (even | (odd << 4)).to(tl.uint8), mask=live[:, None] & (pairs[None, :] < DIM // 2))
        tl.store(scales, scale, mask=live)
        zeros = (head + BLOCK * (DIM * BITS // 8 + 2)).to(tl.pointer_type(tl.float16)) + row
        tl.store(zeros, zero, mask=live)
