"""In BF16 no bit of a result tells how a prompt was cut into chunks, as long as each begins at a multiple of a tile."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from kvtide_kernels.attention import SequenceSpan
from kvtide_kernels.cpu.attention import CpuAttention
from kvtide_kernels.cpu.build import SOURCES
from kvtide_kernels.pool import KVPool
from kvtide_sizing.formats import BF16, LayerFormat
from kvtide_sizing.memory.kv import KvLayout, TableLayout
from kvtide_worker.engine.block_manager import BlockTable
from kvtide_worker.engine.prefix_cache import ALIGNED_TOKENS

HEAD_DIM = 64


def test_a_tile_is_what_the_engine_takes_it_for() -> None:
    layout = (Path(SOURCES) / "layout.h").read_text()
    assert f"constexpr int TILE = {ALIGNED_TOKENS};" in layout


@pytest.mark.parametrize("window", [None, 1, 40, 64, 100])
@pytest.mark.parametrize(("kv_heads", "group"), [(1, 4), (2, 2), (1, 1), (1, 9)])
@pytest.mark.parametrize("block_size", [16, 64])
def test_results_do_not_tell_where_a_prompt_was_cut(
    window: int | None, kv_heads: int, group: int, block_size: int
) -> None:
    torch.manual_seed(7)
    longest = 330
    layout = KvLayout(block_size, 4 * block_size * HEAD_DIM * kv_heads, (TableLayout((0,), window),), step_tokens=512)
    num_blocks = -(-longest // block_size)
    pool = KVPool.allocate(
        layout,
        [LayerFormat(BF16, BF16)],
        num_blocks=num_blocks,
        kv_heads=kv_heads,
        head_dim=HEAD_DIM,
        device=torch.device("cpu"),
    )
    attention = CpuAttention(pool, scale=HEAD_DIM**-0.5)
    # Twice as wide as usual: a row attends to few, and its sums of weights have more to round.
    query, key, value = (2 * torch.randn(longest, heads, HEAD_DIM) for heads in (kv_heads * group, kv_heads, kv_heads))
    query, key, value = query.bfloat16(), key.bfloat16(), value.bfloat16()

    def results(*cuts: int) -> torch.Tensor:
        chunks = []
        for start, end in pairwise(cuts):
            step = attention.plan([SequenceSpan((BlockTable(deque(range(num_blocks))),), start, end - start)])
            chunks.append(step.run(0, query[start:end], key[start:end], value[start:end]))
        return torch.cat(chunks)

    for length in (66, 80, 97, 128, 130, 200, longest):
        whole = results(0, length)
        for cuts in ((64,), (128,), (64, 128), (64, 192, 256), tuple(range(64, longest, 64))):
            inside = [cut for cut in cuts if cut < length - 1]
            assert torch.equal(results(0, *inside, length), whole), (length, inside)
