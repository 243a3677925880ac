"""The pool as tensors of numbers, and copies of its blocks in one dense tensor."""

from __future__ import annotations

import torch

from kvtide_kernels.codec import DTYPES
from kvtide_kernels.pool import KVPool


def gather(pool_side: torch.Tensor, block_rows: torch.Tensor) -> torch.Tensor:
    """Copy blocks of one layer's keys or values out as a dense [sequences, kv_heads, tokens, head_dim].

    pool_side [num_blocks, kv_heads, block_size, head_dim]
    block_rows [sequences, kv_heads, blocks]: rows of pool_side seen as [num_blocks * kv_heads, -1]
    """
    num_blocks, kv_heads, block_size, head_dim = pool_side.shape
    rows = pool_side.view(num_blocks * kv_heads, block_size * head_dim)
    return rows.index_select(0, block_rows.flatten()).view(block_rows.shape[0], kv_heads, -1, head_dim)


def dense_dtype(pool: KVPool) -> torch.dtype:
    """What the pool's elements are. Raises ValueError where they are packed, or not the same in all layers."""
    formats = {side for layer in pool.layers for side in (layer.format.key, layer.format.value)}
    dtypes = [DTYPES[stored] for stored in formats if stored in DTYPES]
    if len(dtypes) != 1 or len(formats) != 1:
        raise ValueError(
            f"plain torch attends to {' or '.join(stored.name for stored in DTYPES)} alone, but the pool has "
            f"{', '.join(sorted(stored.name for stored in formats))}"
        )
    return dtypes[0]


def dense(arena: torch.Tensor, pool: KVPool) -> torch.Tensor:
    """A layer's keys or values, [num_blocks, kv_heads, block_size, head_dim]."""
    return arena.view(dense_dtype(pool)).view(-1, pool.kv_heads, pool.layout.block_size, pool.head_dim)
