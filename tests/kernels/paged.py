"""What kernel tests share: a poisoned pool, block tables in no order, and torch's own attention as the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from kvtide_kernels.pool import KVPool
from kvtide_sizing.formats import BF16, FLOAT32, LayerFormat
from kvtide_sizing.memory.kv import KvLayout, TableLayout

HEAD_DIM = 16

# What a result may differ by: float32 sums in another order; bfloat16 rounds results of size ~1 to 8 bits.
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2e-2}


@dataclass
class Held:
    """A sequence's block table."""

    blocks: list[int] = field(default_factory=list)
    first: int = 0
    recent: list[int] = field(default_factory=list)


FORMATS = {torch.bfloat16: LayerFormat(BF16, BF16), torch.float32: LayerFormat(FLOAT32, FLOAT32)}


def layout_of(
    windows: Sequence[int | None], block_size: int, kv_heads: int, dtype: torch.dtype, *, slots: int = 1
) -> KvLayout:
    """A table for each window, of `slots` layers whose numbers are dealt out in turn."""
    count = len(windows)
    tables = tuple(TableLayout(tuple(range(i, slots * count, count)), window) for i, window in enumerate(windows))
    block_bytes = slots * block_size * 2 * kv_heads * HEAD_DIM * dtype.itemsize
    return KvLayout(block_size, block_bytes, tables, step_tokens=512)


def poisoned_pool(layout: KvLayout, num_blocks: int, kv_heads: int, dtype: torch.dtype) -> KVPool:
    """A pool in which everything that was not written is NaN."""
    formats = [FORMATS[dtype]] * sum(len(table.layers) for table in layout.tables)
    pool = KVPool.allocate(
        layout, formats, num_blocks=num_blocks, kv_heads=kv_heads, head_dim=HEAD_DIM, device=torch.device("cpu")
    )
    pool.storage.view(dtype).fill_(float("nan"))
    return pool


def oracle(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, window: int | None, scale: float
) -> torch.Tensor:
    """The last len(query) tokens of a sequence attend to its last `window` ones, in float32: [tokens, heads, dim]."""
    position = torch.arange(key.shape[0])
    past = key.shape[0] - query.shape[0]
    behind = position[past:, None] - position[None, :]
    mask = (behind >= 0) & (behind < (key.shape[0] if window is None else window))
    q, k, v = (side.float().transpose(0, 1)[None] for side in (query, key, value))
    attended = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=True)
    return attended[0].transpose(0, 1)
