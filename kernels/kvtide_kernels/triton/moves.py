"""Moving blocks within the pool: copies for copy-on-write, and packing a whole arena tighter, in place."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from kvtide_kernels.pool import StoredLayer
from kvtide_kernels.triton.arena import Arena
from kvtide_kernels.triton.encode import store_vectors
from kvtide_kernels.triton.shapes import padded
from kvtide_sizing.formats import BF16, INT4, INT8, VectorFormat

_COPY_WORDS = 1024

# Bytes of blocks that are set aside together while an arena is packed tighter.
STAGING_BYTES = 16 * 2**20

# What an arena may become: tighter, and by one decoding.
TIGHTER = {BF16: (INT8, INT4), INT8: (INT4,)}


@triton.jit
def copy_kernel(storage, pairs, BLOCK_WORDS: tl.constexpr, STEP: tl.constexpr):
    """Copy STEP int32 words of one block to another; grid (pairs, ceil(BLOCK_WORDS / STEP)), pairs [n, 2] int32."""
    storage = storage.to(tl.pointer_type(tl.int32))
    source = tl.load(pairs + tl.program_id(0) * 2).to(tl.int64) * BLOCK_WORDS
    target = tl.load(pairs + tl.program_id(0) * 2 + 1).to(tl.int64) * BLOCK_WORDS
    words = tl.program_id(1) * STEP + tl.arange(0, STEP)
    inside = words < BLOCK_WORDS
    tl.store(storage + target + words, tl.load(storage + source + words, mask=inside), mask=inside)


@triton.jit(do_not_specialize=["first_block"])
def reencode_kernel(
    old,
    new,
    first_block,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    OLD_BITS: tl.constexpr,
    OLD_HEAD_BYTES: tl.constexpr,
    BITS: tl.constexpr,
    HEAD_BYTES: tl.constexpr,
    RUN: tl.constexpr,
):
    """Pack ROWS tokens of one (block, head) anew; grid (blocks, KV_HEADS, BLOCK / ROWS).

    old: blocks from first_block on, in 16 bits or in 8, set aside; new: the arena
    """
    block = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, WIDTH)
    inside = (columns < DIM)[None, :] & (row >= 0)[:, None]
    source = old + (block * KV_HEADS + head) * OLD_HEAD_BYTES
    if OLD_BITS == 16:
        where = (source + row * (2 * DIM)).to(tl.pointer_type(tl.bfloat16))
        x = tl.load(where[:, None] + columns[None, :], mask=inside, other=0.0).to(tl.float32)
    else:
        where = (source + row * DIM).to(tl.pointer_type(tl.int8))
        x = tl.load(where[:, None] + columns[None, :], mask=inside, other=0).to(tl.float32)
        x *= tl.load((source + BLOCK * DIM).to(tl.pointer_type(tl.float16)) + row).to(tl.float32)[:, None]
    target = new + ((first_block + block) * KV_HEADS + head) * HEAD_BYTES
    store_vectors(x, target, row, row >= 0, ROWS, DIM, WIDTH, BITS, RUN, BLOCK)


def copy_blocks(layers: Sequence[StoredLayer], pairs: Sequence[tuple[int, int]]) -> None:
    """Copy whole blocks, (source, target), in these layers of one table, before anyone writes to the target.

    Raises ValueError where a target is given twice or is a source too: the copies run at once, in no order.
    """
    targets = {target for _, target in pairs}
    if len(targets) != len(pairs) or targets & {source for source, _ in pairs}:
        raise ValueError(f"blocks are copied at once, so a target is no source and no other's target: {list(pairs)}")
    if not pairs:
        return
    table = torch.tensor(pairs, dtype=torch.int32, device=layers[0].key.device)
    for arena in (side for layer in layers for side in (layer.key, layer.value)):
        # To the next block: what lies between heads that fill less than their slot is the same layer's.
        words = arena.stride(0) // 4
        grid = (len(pairs), triton.cdiv(words, _COPY_WORDS))
        copy_kernel[grid](arena, table, BLOCK_WORDS=words, STEP=_COPY_WORDS, num_warps=4)


def reencode(arena: Arena, to: VectorFormat, num_blocks: int) -> Arena:
    """Pack the first num_blocks blocks tighter, within the same bytes; the arena has room for more blocks then.

    A block keeps its id, and moves from id * old bytes to id * new bytes:

        old    | 0       | 1       | 2       | 3       |
        new    | 0  | 1  | 2  | 3  |  free              |

    In ascending order what is written lies at or before what was read. Blocks are set aside a batch at a time first:
    within a batch, a program's target is another one's source.

    Raises ValueError where the format is not tighter, or the arena has fewer blocks or gaps.
    """
    old, storage = arena.format, arena.storage
    served = TIGHTER.get(old, ())
    if to not in served:
        raise ValueError(
            f"{old.name} blocks are not packed to {to.name} in place; "
            f"to {' or '.join(one.name for one in served) or 'nothing'} they are"
        )
    if num_blocks > arena.num_blocks:
        raise ValueError(f"{num_blocks} blocks are to be packed, but the arena has {arena.num_blocks}")
    if not storage.is_contiguous():
        raise ValueError(f"an arena is packed as one run of bytes, but {list(storage.shape)} has gaps between heads")
    dim, block, heads = arena.head_dim, arena.block_size, arena.kv_heads
    old_bytes, new_bytes = arena.head_bytes, block * to.vector_bytes(dim)
    room = storage.numel() // (heads * new_bytes)
    new = Arena(to, dim, block, storage.view(-1)[: room * heads * new_bytes].view(room, heads, new_bytes))
    batch = max(1, min(num_blocks, STAGING_BYTES // (heads * old_bytes)))
    staging = torch.empty(batch, heads, old_bytes, dtype=torch.uint8, device=storage.device)
    for first in range(0, num_blocks, batch):
        count = min(batch, num_blocks - first)
        staging[:count].copy_(storage[first : first + count])
        reencode_kernel[(count, heads, block // 16)](
            staging,
            new.storage,
            first,
            KV_HEADS=heads,
            DIM=dim,
            WIDTH=padded(dim),
            ROWS=16,
            BLOCK=block,
            OLD_BITS=old.bits,
            OLD_HEAD_BYTES=old_bytes,
            BITS=to.bits,
            HEAD_BYTES=new_bytes,
            RUN=new.rotation,
            num_warps=4,
        )
    return new
