"""Keys and values in bfloat16 inside attention: a chunk's own, and the recent tokens that layers of few bits keep."""

import triton
import triton.language as tl

from kvtide_kernels.triton.softmax import logits, weigh
from kvtide_kernels.triton.tiles import operand


@triton.jit
def recent_places(blocks, tokens, RECENT: tl.constexpr, RECENT_ROWS: tl.constexpr):
    """Where recent tokens lie: their blocks, and their places there. A token before the first is at -RECENT at least.

    blocks: a sequence's blocks of recent tokens, each of which takes RECENT_ROWS
    """
    place = (tokens + RECENT) % RECENT
    return tl.load(blocks + place // RECENT_ROWS).to(tl.int64), place % RECENT_ROWS


@triton.jit
def add_plain(
    query,
    keys,
    values,
    there,
    looks,
    top,
    total,
    sums,
    scale,
    cap,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    CAPPED: tl.constexpr,
    MATH: tl.constexpr,
):
    """One tile of tokens that are not packed: (top, total, sums) with them.

    query [M, WIDTH] as `operand` gives it; keys, values: pointers [TILE] to each token's first element; there [TILE]:
    which may be read; looks [M or 1, TILE]: which a row attends to; top, total [M], sums [M, WIDTH] so far
    """
    columns = tl.arange(0, WIDTH)
    inside = there[:, None] & (columns < DIM)[None, :]
    tile = tl.load(keys[:, None] + columns[None, :], mask=inside, other=0.0)
    scores = tl.dot(query, tl.trans(operand(tile, 16, MATH)))
    x = tl.where(looks, logits(scores, scale, cap, CAPPED), float("-inf"))
    weights, top, shrink = weigh(x, top)
    total = total * shrink + tl.sum(weights, 1)
    tile = tl.load(values[:, None] + columns[None, :], mask=inside, other=0.0)
    sums = tl.dot(operand(weights, 16, MATH), operand(tile, 16, MATH), sums * shrink[:, None])
    return top, total, sums


@triton.jit
def add_recent(
    query,
    key_arena,
    value_arena,
    blocks,
    tokens,
    kv_head,
    there,
    looks,
    top,
    total,
    sums,
    scale,
    cap,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    KEY_HEAD_STRIDE: tl.constexpr,
    VALUE_HEAD_STRIDE: tl.constexpr,
    RECENT: tl.constexpr,
    RECENT_ROWS: tl.constexpr,
    CAPPED: tl.constexpr,
    MATH: tl.constexpr,
):
    """As `add_plain`, of the recent ones among tokens [RECENT] of one sequence."""
    block, row = recent_places(blocks, tokens, RECENT, RECENT_ROWS)
    head = block * KV_HEADS + kv_head
    keys = (key_arena + head * KEY_HEAD_STRIDE + row * (2 * DIM)).to(tl.pointer_type(tl.bfloat16))
    values = (value_arena + head * VALUE_HEAD_STRIDE + row * (2 * DIM)).to(tl.pointer_type(tl.bfloat16))
    return add_plain(query, keys, values, there, looks, top, total, sums, scale, cap, DIM, WIDTH, CAPPED, MATH)


@triton.jit
def keep_recent_kernel(
    key,
    value,
    key_arena,
    value_arena,
    recent_tables,
    items,
    key_stride,
    value_stride,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    KEY_HEAD_STRIDE: tl.constexpr,
    VALUE_HEAD_STRIDE: tl.constexpr,
    RECENT: tl.constexpr,
    RECENT_ROWS: tl.constexpr,
    RECENT_BLOCKS: tl.constexpr,
):
    """Write a chunk's last tokens to its recent blocks, when all of it has attended; grid (KV_HEADS, prefill items).

    items as `prefill_kernel` has them: the one that has the chunk's first token writes.
    """
    kv_head = tl.program_id(0)
    item = items + tl.program_id(1) * 6
    new = tl.load(item + 3)
    if tl.load(item + 4) > 0:
        return
    mine = new - RECENT + tl.arange(0, RECENT)
    columns = tl.arange(0, WIDTH)
    mask = (mine >= 0)[:, None] & (columns < DIM)[None, :]
    blocks = recent_tables + tl.load(item + 1) * RECENT_BLOCKS
    block, row = recent_places(blocks, tl.load(item + 2) + mine, RECENT, RECENT_ROWS)
    head = block * KV_HEADS + kv_head
    token = tl.load(item).to(tl.int64) + mine
    for side in tl.static_range(2):
        fresh, stride = key, key_stride
        to = key_arena + head * KEY_HEAD_STRIDE
        if side == 1:
            fresh, stride = value, value_stride
            to = value_arena + head * VALUE_HEAD_STRIDE
        x = tl.load((fresh + token * stride + kv_head * DIM)[:, None] + columns[None, :], mask=mask, other=0.0)
        where = (to + row * (2 * DIM)).to(tl.pointer_type(tl.bfloat16))
        tl.store(where[:, None] + columns[None, :], x.to(tl.bfloat16), mask=mask)
