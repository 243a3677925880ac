"""A whole arena that becomes a smaller format where it lies. (Blocks are copied by `KVPool.copy_blocks`.)"""

from __future__ import annotations

import torch

from kvtide_kernels.cpu.arenas import check_served, side_of
from kvtide_kernels.cpu.library import library
from kvtide_sizing.formats import BF16, INT4, INT8, VectorFormat

# What an arena can become where it lies: the next format is smaller.
_SMALLER = {BF16: (INT8, INT4), INT8: (INT4,)}


def reencode_in_place(
    arena: torch.Tensor, old: VectorFormat, new: VectorFormat, *, head_dim: int, block_size: int
) -> torch.Tensor:
    """Re-encode a dense arena from one format to a smaller one without a second arena, ids of blocks unchanged.

    arena uint8 [num_blocks, kv_heads, bytes of `old`], contiguous. Returns the same memory as
    [blocks, kv_heads, bytes of `new`] with the blocks that fit now; the first num_blocks are the old ones, and the rest
    is free. Raises ValueError where the new format is not a smaller one of the same kind.
    """
    check_served(old, head_dim, block_size)
    check_served(new, head_dim, block_size)
    if new not in _SMALLER.get(old, ()):
        ways = ", ".join(f"{one.name} to {other.name}" for one, others in _SMALLER.items() for other in others)
        raise ValueError(f"blocks of {old.name} cannot become {new.name} where they lie; there are {ways}")
    if not arena.is_contiguous():
        raise ValueError(f"an arena is re-encoded as one piece of memory, but its strides are {arena.stride()}")
    num_blocks, kv_heads, _ = arena.shape
    flat = arena.view(-1)
    wide = block_size * new.vector_bytes(head_dim)
    count = flat.numel() // (kv_heads * wide)
    smaller = flat[: count * kv_heads * wide].view(count, kv_heads, wide)
    library().reencode(side_of(arena, old, head_dim), side_of(smaller, new, head_dim), block_size, kv_heads, num_blocks)
    return smaller
