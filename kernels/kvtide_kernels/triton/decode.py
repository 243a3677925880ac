"""Decode: one new token a sequence, which attends through the cache to what its item says."""

import triton
import triton.language as tl

from kvtide_kernels.triton.packed import add_packed
from kvtide_kernels.triton.recent import add_recent
from kvtide_kernels.triton.rotate import hadamard
from kvtide_kernels.triton.softmax import normalise, weigh
from kvtide_kernels.triton.tiles import load_query, operand, whole_values


@triton.jit(do_not_specialize=["table_stride"])
def decode_kernel(
    query,
    packed_query,
    key_arena,
    value_arena,
    tables,
    recent_tables,
    items,
    sinks,
    out,
    part_values,
    part_tops,
    part_totals,
    query_stride,
    packed_stride,
    table_stride,
    scale,
    cap,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
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
    CAPPED: tl.constexpr,
    SINKS: tl.constexpr,
    SPLIT: tl.constexpr,
    MATH: tl.constexpr,
):
    """A program takes one item and M query heads of one KV head; grid (KV_HEADS * ceil(GROUP / M), items).

    items [items, 6] int32: row in the batch, row in tables, first token, end, the sequence's first recent token, its
    end. Tokens count from where the row's blocks begin. An item of no tokens is padding. RECENT: recent tokens are not
    read packed; the item that ends its sequence takes them in bfloat16, and meets them with query, which is not
    rotated. SPLIT: sums go to part_* [items, KV_HEADS * GROUP, ...] for `reduce_kernel`, rotated where values are, else
    the result to out [tokens, KV_HEADS * GROUP, DIM].
    """
    HEAD_TILES: tl.constexpr = (GROUP + M - 1) // M
    kv_head = tl.program_id(0) // HEAD_TILES
    item = tl.program_id(1)
    token = tl.load(items + item * 6)
    row_in_tables = tl.load(items + item * 6 + 1)
    table = tables + row_in_tables.to(tl.int64) * table_stride
    start = tl.load(items + item * 6 + 2)
    end = tl.load(items + item * 6 + 3)
    if start >= end:
        return
    packed_end = end
    if RECENT > 0:
        recent = tl.load(items + item * 6 + 4)
        packed_end = tl.minimum(end, recent)

    in_group = (tl.program_id(0) % HEAD_TILES) * M + tl.arange(0, M)
    mask = in_group < GROUP
    head = kv_head * GROUP + in_group
    rows = packed_query + token.to(tl.int64) * packed_stride + head * DIM
    q0, q1, q2, q3, query_sum = load_query(rows, mask, DIM, WIDTH, KEY_BITS, MATH)

    top = tl.full([M], float("-inf"), tl.float32)
    # Summed over the tile's columns once, behind the loop.
    totals = tl.zeros([M, TILE], tl.float32)
    shift = tl.zeros([M, TILE], tl.float32)
    v0 = tl.zeros([M, WIDTH * VALUE_BITS // 16], tl.float32)
    v1, v2, v3 = v0, v0, v0
    for at in tl.range(start // TILE * TILE, packed_end, TILE):
        tokens = at + tl.arange(0, TILE)
        seen = (tokens >= start) & (tokens < packed_end)
        top, totals, v0, v1, v2, v3, shift = add_packed(
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
            seen[None, :],
            top,
            totals,
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
            True,
            MATH,
        )

    total = tl.sum(totals, 1)
    values = whole_values(v0, v1, v2, v3, tl.sum(shift, 1), M, WIDTH, VALUE_BITS)
    columns = tl.arange(0, WIDTH)
    inside = mask[:, None] & (columns < DIM)[None, :]
    if VALUE_RUN > 0 and not SPLIT:
        values = hadamard(values, M, WIDTH, VALUE_RUN)
    if RECENT > 0 and end == tl.load(items + item * 6 + 5):
        if VALUE_RUN > 0 and SPLIT:
            values = hadamard(values, M, WIDTH, VALUE_RUN)
        rows = query + token.to(tl.int64) * query_stride + head * DIM
        plain = operand(tl.load(rows[:, None] + columns[None, :], mask=inside, other=0.0), 16, MATH)
        tokens = end - RECENT + tl.arange(0, RECENT)
        there = tokens >= recent
        top, total, values = add_recent(
            plain,
            key_arena,
            value_arena,
            recent_tables + row_in_tables * RECENT_BLOCKS,
            tokens,
            kv_head,
            there,
            there[None, :],
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
        if VALUE_RUN > 0 and SPLIT:
            values = hadamard(values, M, WIDTH, VALUE_RUN)
    if SPLIT:
        part = item.to(tl.int64) * (KV_HEADS * GROUP) + head
        tl.store(part_values + part[:, None] * DIM + columns[None, :], values, mask=inside)
        tl.store(part_tops + part, top, mask=mask)
        tl.store(part_totals + part, total, mask=mask)
    else:
        values = normalise(values, top, total, sinks + head, mask, SINKS)
        to = out + (token.to(tl.int64) * (KV_HEADS * GROUP) + head) * DIM
        tl.store(to[:, None] + columns[None, :], values.to(out.dtype.element_ty), mask=inside)


@triton.jit
def reduce_kernel(
    part_values,
    part_tops,
    part_totals,
    parts,
    sinks,
    out,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    PARTS: tl.constexpr,
    VALUE_RUN: tl.constexpr,
    SINKS: tl.constexpr,
):
    """A program merges one sequence's items for one query head, PARTS at a time; grid (HEADS, sequences).

    parts [sequences, 3] int32: row in out, first item, items (0 is padding)
    """
    head = tl.program_id(0)
    sequence = tl.program_id(1)
    token = tl.load(parts + sequence * 3)
    begin = tl.load(parts + sequence * 3 + 1)
    end = begin + tl.load(parts + sequence * 3 + 2)
    if begin >= end:
        return

    columns = tl.arange(0, WIDTH)
    inside = columns < DIM
    top = tl.full([1], float("-inf"), tl.float32)
    total = tl.zeros([1], tl.float32)
    values = tl.zeros([1, WIDTH], tl.float32)
    for at in tl.range(begin, end, PARTS):
        item = at + tl.arange(0, PARTS)
        part = item.to(tl.int64) * HEADS + head
        tops = tl.load(part_tops + part, mask=item < end, other=float("-inf"))
        weights, top, shrink = weigh(tops[None, :], top)
        weight = tl.reshape(weights, (PARTS,))
        totals = tl.load(part_totals + part, mask=item < end, other=0.0)
        total = total * shrink + tl.sum(weight * totals, 0)
        where = part_values + part[:, None] * DIM + columns[None, :]
        sums = tl.load(where, mask=(item < end)[:, None] & inside[None, :], other=0.0)
        values = values * shrink[:, None] + tl.sum(weight[:, None] * sums, 0)[None, :]

    one = tl.zeros([1], tl.int32)
    values = normalise(values, top, total, sinks + head + one, one == 0, SINKS)
    if VALUE_RUN > 0:
        values = hadamard(values, 1, WIDTH, VALUE_RUN)
    to = out + (token.to(tl.int64) * HEADS + head) * DIM
    tl.store(to + columns[None, :], values.to(out.dtype.element_ty), mask=inside[None, :])
