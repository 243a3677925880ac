"""The pool's bytes, and where layers lie in it."""

from __future__ import annotations

import pytest
import torch

from kvtide_kernels.pool import KVPool
from kvtide_sizing.memory.kv import KvLayout, TableLayout


def allocate(layout: KvLayout, *, num_blocks: int, head_dim: int, dtype: torch.dtype = torch.bfloat16) -> KVPool:
    return KVPool.allocate(
        layout, num_blocks=num_blocks, kv_heads=3, head_dim=head_dim, dtype=dtype, device=torch.device("cpu")
    )


# SmolLM2-135M: 2 sides x 30 layers x 3 KV heads x 64 x 2 bytes = 23,040 bytes per token.
SMOLLM2 = KvLayout(64, 23_040 * 64, (TableLayout(tuple(range(30)), None),), step_tokens=512)


def test_bytes() -> None:
    assert allocate(SMOLLM2, num_blocks=2, head_dim=64).nbytes == 23_040 * 64 * 2
    assert allocate(SMOLLM2, num_blocks=2, head_dim=64, dtype=torch.float32).nbytes == 23_040 * 64 * 2 * 2


def test_refuses_heads_that_were_not_planned() -> None:
    # 2 blocks of 64 tokens: 2 sides x 30 layers x 3 heads x 32 x 2 bytes = 11,520 a token
    with pytest.raises(ValueError, match="take 1474560 bytes, but the layout plans 2949120"):
        allocate(SMOLLM2, num_blocks=2, head_dim=32)


def test_layers_of_one_table_have_places_of_their_own() -> None:
    """The layers of a table write the same block, each to its slot: nothing is left over, nothing overwritten."""
    tables = (TableLayout((2, 5), None), TableLayout((0, 1), 32), TableLayout((3, 4), 32))
    pool = allocate(KvLayout(16, 2 * 2 * 3 * 16 * 8 * 2, tables, step_tokens=64), num_blocks=6, head_dim=8)
    assert pool.tables == (1, 1, 0, 2, 2, 0)
    blocks = {0: (0, 5), 1: (1, 3), 2: (2, 4)}  # each table's
    for layer, table in enumerate(pool.tables):
        for block in blocks[table]:
            pool.keys[layer][block] = layer + 1
            pool.values[layer][block] = -layer - 1
    for layer, table in enumerate(pool.tables):
        for block in blocks[table]:
            assert pool.keys[layer][block].eq(layer + 1).all()
            assert pool.values[layer][block].eq(-layer - 1).all()
    assert pool.storage.ne(0).all()
