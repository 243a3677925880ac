"""Writing a step's new tokens: RoPE, rotation, quantisation and the scatter into slots, in one launch."""

import triton
import triton.language as tl

from kvtide_kernels.triton.encode import store_vectors
from kvtide_kernels.triton.rotate import hadamard


@triton.jit
def _load_head(heads, token, live, cos, sin, DIM: tl.constexpr, WIDTH: tl.constexpr, ROPE: tl.constexpr):
    """One head of some tokens in float32 [tokens, WIDTH], 0 beyond DIM, turned by its position where ROPE says so."""
    columns = tl.arange(0, WIDTH)
    mask = live[:, None] & (columns[None, :] < DIM)
    x = tl.load(heads[:, None] + columns[None, :], mask=mask, other=0.0).to(tl.float32)
    if ROPE:
        # A head's halves are the two coordinates. The sines carry the sign already.
        other_half = (columns + DIM // 2) % DIM
        swapped = tl.load(heads[:, None] + other_half[None, :], mask=mask, other=0.0).to(tl.float32)
        at = token[:, None] * DIM + columns[None, :]
        turned = x * tl.load(cos + at, mask=mask, other=0.0).to(tl.float32)
        turned += swapped * tl.load(sin + at, mask=mask, other=0.0).to(tl.float32)
        # What attention sees of a key that is not packed is bfloat16; a packed one is made of the same.
        x = turned.to(heads.dtype.element_ty).to(tl.float32)
    return x


@triton.jit(do_not_specialize=["tokens"])
def write_kernel(
    query,
    key,
    value,
    cos,
    sin,
    slots,
    recent_slots,
    key_arena,
    value_arena,
    turned_query,
    turned_key,
    rotated_query,
    tokens,
    query_stride,
    key_stride,
    value_stride,
    KV_HEADS: tl.constexpr,
    QUERY_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    KEY_BITS: tl.constexpr,
    KEY_HEAD_STRIDE: tl.constexpr,
    KEY_RUN: tl.constexpr,
    VALUE_BITS: tl.constexpr,
    VALUE_HEAD_STRIDE: tl.constexpr,
    VALUE_RUN: tl.constexpr,
    RECENT: tl.constexpr,
    RECENT_ROWS: tl.constexpr,
    ROPE: tl.constexpr,
    TURN_QUERY: tl.constexpr,
    TURN_KEY: tl.constexpr,
):
    """A program takes ROWS tokens of one KV head, or of one query head (where there is anything to do for those).

    query [tokens, QUERY_HEADS, DIM], key, value [tokens, KV_HEADS, DIM]: a token's heads side by side, tokens
    *_stride elements apart; cos, sin [tokens, DIM], sines signed. slots [tokens]: block * BLOCK + place, -1 skips;
    recent_slots [tokens], where RECENT says that the layer keeps them: block * RECENT_ROWS + place, or -1.
    TURN_QUERY, TURN_KEY: where the ones with RoPE go, for kernels that read them. rotated_query gets what meets packed
    keys. None of these may be what is read: a program reads elements that another thread would overwrite.
    """
    token = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    head = tl.program_id(1)
    live = token < tokens
    long_token = token.to(tl.int64)
    columns = tl.arange(0, WIDTH)
    mask = live[:, None] & (columns[None, :] < DIM)
    if head < KV_HEADS:
        slot = tl.load(slots + token, mask=live, other=-1)
        kept = slot >= 0
        block = tl.maximum(slot, 0) // BLOCK
        row = tl.maximum(slot, 0) % BLOCK
        at = (block * KV_HEADS + head).to(tl.int64)
        keys = key + long_token * key_stride + head * DIM
        x = _load_head(keys, token, live, cos, sin, DIM, WIDTH, ROPE)
        if TURN_KEY:
            out = turned_key + (long_token * KV_HEADS + head) * DIM
            tl.store(out[:, None] + columns[None, :], x.to(turned_key.dtype.element_ty), mask=mask)
        if RECENT > 0:
            recent = tl.load(recent_slots + token, mask=live, other=-1)
            recent_row = tl.maximum(recent, 0) % RECENT_ROWS * (2 * DIM)
            recent_at = (tl.maximum(recent, 0) // RECENT_ROWS * KV_HEADS + head).to(tl.int64)
            is_recent = (recent >= 0)[:, None] & mask
            beside = (key_arena + recent_at * KEY_HEAD_STRIDE + recent_row).to(tl.pointer_type(tl.bfloat16))
            tl.store(beside[:, None] + columns[None, :], x.to(tl.bfloat16), mask=is_recent)
        store_vectors(x, key_arena + at * KEY_HEAD_STRIDE, row, kept, ROWS, DIM, WIDTH, KEY_BITS, KEY_RUN, BLOCK)
        values = value + long_token * value_stride + head * DIM
        x = _load_head(values, token, live, cos, sin, DIM, WIDTH, False)
        if RECENT > 0:
            beside = (value_arena + recent_at * VALUE_HEAD_STRIDE + recent_row).to(tl.pointer_type(tl.bfloat16))
            tl.store(beside[:, None] + columns[None, :], x.to(tl.bfloat16), mask=is_recent)
        store_vectors(
            x,
            value_arena + at * VALUE_HEAD_STRIDE,
            row,
            kept,
            ROWS,
            DIM,
            WIDTH,
            VALUE_BITS,
            VALUE_RUN,
            BLOCK,
        )
    else:
        head -= KV_HEADS
        queries = query + long_token * query_stride + head * DIM
        x = _load_head(queries, token, live, cos, sin, DIM, WIDTH, ROPE)
        to = ((long_token * QUERY_HEADS + head) * DIM)[:, None] + columns[None, :]
        if TURN_QUERY:
            tl.store(turned_query + to, x.to(turned_query.dtype.element_ty), mask=mask)
        if KEY_RUN > 0:
            x = hadamard(x, ROWS, WIDTH, KEY_RUN)
            tl.store(rotated_query + to, x.to(rotated_query.dtype.element_ty), mask=mask)
