"""Arenas as the CPU's kernels take them, and which they take."""

from __future__ import annotations

import torch

from kvtide_kernels.cpu.library import Side
from kvtide_kernels.pool import KVPool
from kvtide_kernels.served import SERVED_BLOCK_SIZES, SERVED_HEAD_DIMS
from kvtide_sizing.formats import BF16, INT4, INT8, VectorFormat

# As `Format` in src/layout.h.
_CODES = {BF16: 0, INT8: 1, INT4: 2}


def side_of(arena: torch.Tensor, stored: VectorFormat, head_dim: int) -> Side:
    """The structure for an arena uint8 [num_blocks, kv_heads, bytes], dense in its last dimension."""
    return Side(arena.data_ptr(), arena.stride(0), arena.stride(1), _CODES[stored], head_dim)


def check_pool(pool: KVPool) -> None:
    """Raise ValueError for a pool that the kernels do not serve, or whose arenas have not its layout's sizes."""
    head_dim, block_size = pool.head_dim, pool.layout.block_size
    for index, layer in enumerate(pool.layers):
        for side, arena, stored in (
            ("keys", layer.key, layer.format.key),
            ("values", layer.value, layer.format.value),
        ):
            check_served(stored, head_dim, block_size)
            wanted = (pool.num_blocks, pool.kv_heads, block_size * stored.vector_bytes(head_dim))
            if arena.dtype != torch.uint8 or arena.shape != wanted or arena.stride(2) != 1:
                raise ValueError(
                    f"layer {index}: {side} of {stored.name}, in {wanted[0]} blocks of {block_size} and {wanted[1]} "
                    f"heads of {head_dim}, need a uint8 tensor {list(wanted)}, dense in its last dimension, but the "
                    f"arena is {arena.dtype} {list(arena.shape)}"
                )


def check_served(stored: VectorFormat, head_dim: int, block_size: int) -> None:
    """Raise ValueError for a format, head size or block size (tokens) that the kernels do not serve.

    It looks at no library: it may be asked before anything is compiled or loaded.
    """
    if stored not in _CODES:
        raise ValueError(f"the CPU has no kernels for {stored.name}; there are {', '.join(one.name for one in _CODES)}")
    if head_dim not in SERVED_HEAD_DIMS:
        raise ValueError(f"the CPU has no kernels for heads of {head_dim}; there are {SERVED_HEAD_DIMS}")
    if block_size not in SERVED_BLOCK_SIZES:
        raise ValueError(f"the CPU has no kernels for blocks of {block_size} tokens; there are {SERVED_BLOCK_SIZES}")
