"""Copying blocks out of the pool into a dense tensor."""

from __future__ import annotations

import torch


def gather(pool_side: torch.Tensor, block_rows: torch.Tensor) -> torch.Tensor:
    """Copy blocks of one layer's keys or values out as a dense [sequences, kv_heads, tokens, head_dim].

    pool_side [num_blocks, kv_heads, block_size, head_dim]
    block_rows [sequences, kv_heads, blocks]: rows of pool_side seen as [num_blocks * kv_heads, -1]
    """
    num_blocks, kv_heads, block_size, head_dim = pool_side.shape
    rows = pool_side.view(num_blocks * kv_heads, block_size * head_dim)
    return rows.index_select(0, block_rows.flatten()).view(block_rows.shape[0], kv_heads, -1, head_dim)
