"""Prefill: chunks of several new tokens, of many sequences in one launch."""

import triton
import triton.language as tl

from kvtide_kernels.triton.packed import add_packed
from kvtide_kernels.triton.recent import add_plain, add_recent
from kvtide_kernels.triton.rotate import hadamard
from kvtide_kernels.triton.softmax import normalise
from kvtide_kernels.triton.tiles import load_query, operand, whole_values


@triton.jit(do_not_specialize=["table_stride", "window"])
def prefill_kernel(
    query,
    packed_query,
    key,
    value,
    key_arena,
    value_arena,
    tables,
    recent_tables,
    items,
    sinks,
    out,
    query_stride,
    packed_stride,
    key_stride,
    value_stride,
    table_stride,
    scale,
    cap,
    window,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEADS: tl.constexpr,
    M: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
    KEY_BITS: tl.constexpr,
    KEY_HEAD_STRIDE: tl.constexpr,
    VALUE_BITS: tl.constexpr,
    VALUE_HEAD_STRIDE: tl.constexpr,
    VALUE_RUN: tl.constexpr,
    RECENT: tl.constexpr,
    RECENT_ROWS: tl.constexpr,
    RECENT_BLOCKS: tl.constexpr,
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
    SINKS: tl.constexpr,
    MATH: tl.constexpr,
):
    """A program takes M // HEADS tokens of one item with HEADS query heads each, of one KV head.

        rows       token 0: head 0, 1, ..., HEADS - 1;  token 1: ...
        keys       the past, packed, by way of the table   |   its recent tokens   |   the chunk's own, causal

    The past comes first: its sum is in the rotated basis where values are rotated, and is turned back before values in
    bfloat16 are added to it: those of recent tokens, where RECENT says that the layer keeps them, and the new ones.
    Packed keys meet packed_query (which is query where keys are not rotated).

    items [items, 6] int32: the chunk's first row in query, key, value and out; row in tables; past tokens, counted
    from where the row's blocks begin; new tokens; the first of them that this item takes; the past's first recent
    token. An item whose first is not below its new tokens is padding. Grid (KV_HEADS * ceil(GROUP / HEADS), items).
    """
    HEAD_TILES: tl.constexpr = (GROUP + HEADS - 1) // HEADS
    kv_head = tl.program_id(0) // HEAD_TILES
    item = items + tl.program_id(1) * 6
    chunk = tl.load(item).to(tl.int64)
    row_in_tables = tl.load(item + 1)
    table = tables + row_in_tables.to(tl.int64) * table_stride
    past = tl.load(item + 2)
    new = tl.load(item + 3)
    begin = tl.load(item + 4)
    if begin >= new:
        return
    packed_end = past
    if RECENT > 0:
        recent = tl.load(item + 5)
        packed_end = tl.minimum(past, recent)

    of_tile = tl.arange(0, M)
    in_group = (tl.program_id(0) % HEAD_TILES) * HEADS + of_tile % HEADS
    mine = begin + of_tile // HEADS
    mask = (of_tile // HEADS < M // HEADS) & (mine < new) & (in_group < GROUP)
    head = kv_head * GROUP + in_group
    token = chunk + mine
    end = tl.minimum(begin + M // HEADS, new)

    rows = packed_query + token * packed_stride + head * DIM
    q0, q1, q2, q3, query_sum = load_query(rows, mask, DIM, WIDTH, KEY_BITS, MATH)
    top = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    shift = tl.zeros([M], tl.float32)
    v0 = tl.zeros([M, WIDTH * VALUE_BITS // 16], tl.float32)
    v1, v2, v3 = v0, v0, v0

    start = 0
    if WINDOWED:
        start = tl.maximum(0, past + begin + 1 - window) // TILE * TILE
    for at in tl.range(start, packed_end, TILE):
        tokens = at + tl.arange(0, TILE)
        seen = tokens < packed_end
        looks = seen[None, :]
        if WINDOWED:
            # What is behind the window of all rows may be given back, and hold anything.
            seen = seen & (tokens > past + begin - window)
            looks = seen[None, :] & (tokens[None, :] > (past + mine - window)[:, None])
        top, total, v0, v1, v2, v3, shift = add_packed(
            q0,
            q1,
            q2,
            q3,
            query_sum,
            key_arena,
            value_arena,
            table,
            at,
            packed_end,
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
            KV_HEADS,
            DIM,
            WIDTH,
            TILE,
            BLOCK,
            KEY_BITS,
            KEY_HEAD_STRIDE,
            VALUE_BITS,
            VALUE_HEAD_STRIDE,
            CAPPED,
            False,
            MATH,
        )

    values = whole_values(v0, v1, v2, v3, shift, M, WIDTH, VALUE_BITS)
    if VALUE_RUN > 0:
        values = hadamard(values, M, WIDTH, VALUE_RUN)

    columns = tl.arange(0, WIDTH)
    inside = (columns < DIM)[None, :]
    rows = query + token * query_stride + head * DIM
    plain = operand(tl.load(rows[:, None] + columns[None, :], mask=mask[:, None] & inside, other=0.0), 16, MATH)
    if RECENT > 0 and packed_end < past:
        tokens = past - RECENT + tl.arange(0, RECENT)
        there = tokens >= recent
        looks = there[None, :]
        if WINDOWED:
            looks = looks & (tokens[None, :] > (past + mine - window)[:, None])
        top, total, values = add_recent(
            plain,
            key_arena,
            value_arena,
            recent_tables + row_in_tables * RECENT_BLOCKS,
            tokens,
            kv_head,
            there,
            looks,
            top,
            total,
            values,
            scale,
            cap,
            KV_HEADS,
            DIM,
            WIDTH,
            KEY_HEAD_STRIDE,
            VALUE_HEAD_STRIDE,
            RECENT,
            RECENT_ROWS,
            CAPPED,
            MATH,
        )

    start = 0
    if WINDOWED:
        start = tl.maximum(0, begin + 1 - window) // TILE * TILE
    for at in tl.range(start, end, TILE):
        tokens = at + tl.arange(0, TILE)
        looks = tokens[None, :] <= mine[:, None]
        if WINDOWED:
            looks = looks & (tokens[None, :] > (mine - window)[:, None])
        top, total, values = add_plain(
            plain,
            key + (chunk + tokens) * key_stride + kv_head * DIM,
            value + (chunk + tokens) * value_stride + kv_head * DIM,
            tokens < end,
            looks,
            top,
            total,
            values,
            scale,
            cap,
            DIM,
            WIDTH,
            CAPPED,
            MATH,
        )

    values = normalise(values, top, total, sinks + head, mask, SINKS)
    to = out + (token * (KV_HEADS * GROUP) + head) * DIM
    tl.store(to[:, None] + columns[None, :], values.to(out.dtype.element_ty), mask=mask[:, None] & inside)
