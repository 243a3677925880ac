"""A tile of packed tokens inside attention, as `recent.py` has those in bfloat16."""

import triton
import triton.language as tl

from kvtide_kernels.triton.softmax import logits, weigh
from kvtide_kernels.triton.tiles import add_values, block_ids, key_scores


@triton.jit
def add_packed(
    q0,
    q1,
    q2,
    q3,
    query_sum,
    key_arena,
    value_arena,
    table,
    at,
    end,
    kv_head,
    seen,
    looks,
    top,
    total,
    v0,
    v1,
    v2,
    v3,
    shift,
    scale,
    cap,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
    KEY_BITS: tl.constexpr,
    KEY_HEAD_STRIDE: tl.constexpr,
    VALUE_BITS: tl.constexpr,
    VALUE_HEAD_STRIDE: tl.constexpr,
    CAPPED: tl.constexpr,
    BY_COLUMN: tl.constexpr,
    MATH: tl.constexpr,
):
    """The sums with the tokens [at, at + TILE), of which the table has those before end: (top, total, v0, v1, v2, v3,
    shift).

    Queries as `load_query` gives them, v0 to v3 as `add_values` has them. total, shift [M]; or BY_COLUMN [M, TILE], to
    be summed when all tiles are done. seen [TILE]: which may be read; looks [M or 1, TILE]: which of these a row
    attends to.
    """
    tokens = at + tl.arange(0, TILE)
    pairs = at + 2 * tl.arange(0, TILE // 2)
    head = block_ids(table, at, tokens, end, BLOCK, TILE) * KV_HEADS + kv_head
    pair_head = block_ids(table, at, pairs, end, BLOCK, TILE) * KV_HEADS + kv_head
    row = tokens % BLOCK
    pair_row = pairs % BLOCK // 2
    scores = key_scores(
        q0,
        q1,
        q2,
        q3,
        query_sum,
        key_arena + head * KEY_HEAD_STRIDE,
        row,
        key_arena + pair_head * KEY_HEAD_STRIDE,
        pair_row,
        seen,
        DIM,
        WIDTH,
        KEY_BITS,
        BLOCK,
        MATH,
    )
    x = tl.where(looks, logits(scores, scale, cap, CAPPED), float("-inf"))
    weights, top, shrink = weigh(x, top)
    if BY_COLUMN:
        total = total * shrink[:, None] + weights
        shifts = shift
    else:
        total = total * shrink + tl.sum(weights, 1)
        shifts = tl.zeros(weights.shape, tl.float32)
    v0, v1, v2, v3, shifts = add_values(
        weights,
        shrink,
        v0,
        v1,
        v2,
        v3,
        shifts,
        value_arena + head * VALUE_HEAD_STRIDE,
        row,
        value_arena + pair_head * VALUE_HEAD_STRIDE,
        pair_row,
        seen,
        DIM,
        WIDTH,
        VALUE_BITS,
        BLOCK,
        MATH,
    )
    if not BY_COLUMN:
        shifts = shift * shrink + tl.sum(shifts, 1)
    return top, total, v0, v1, v2, v3, shifts
