"""Prefill, interpreted: the past through the cache, the new tokens as they are."""

from __future__ import annotations

import pytest

from kvtide_sizing.formats import BF16, INT4, INT8, LayerFormat
from tests.kernels.triton.interpreted.oracle import FORMATS, Case, name

PACKED = LayerFormat(INT4, INT8)
SOME = [LayerFormat(BF16, BF16), LayerFormat(INT8, INT4)]


@pytest.mark.parametrize(
    "stored", [one if one in SOME else pytest.param(one, marks=pytest.mark.slow) for one in FORMATS], ids=name
)
def test_chunks_and_decodes_in_one_step(stored: LayerFormat) -> None:
    Case(stored, [(0, 2), (15, 1), (16, 20), (70, 3)]).check()


@pytest.mark.parametrize("stored", [LayerFormat(BF16, BF16), pytest.param(PACKED, marks=pytest.mark.slow)], ids=name)
def test_a_chunk_of_several_items(stored: LayerFormat) -> None:
    """128 rows are 42 tokens of three heads, or 128 of one."""
    Case(stored, [(33, 100)], group=3).check()


@pytest.mark.parametrize("window", [17, *(pytest.param(one, marks=pytest.mark.slow) for one in (1, 16, 40))])
@pytest.mark.parametrize("stored", [LayerFormat(BF16, BF16), pytest.param(PACKED, marks=pytest.mark.slow)], ids=name)
def test_windows(stored: LayerFormat, window: int) -> None:
    Case(stored, [(0, 30), (50, 60), (150, 5)], window=window, group=4).check()


@pytest.mark.parametrize("stored", [LayerFormat(BF16, BF16), LayerFormat(INT8, INT4)], ids=name)
def test_soft_cap_and_sinks(stored: LayerFormat) -> None:
    Case(stored, [(30, 9), (0, 4)], soft_cap=4.0, sinks=True).check()


@pytest.mark.slow
@pytest.mark.parametrize("stored", FORMATS, ids=name)
@pytest.mark.parametrize("dim", [64, 80, 96, 112, 128, 192, 256])
@pytest.mark.parametrize(("group", "kv_heads"), [(1, 2), (3, 1), (8, 2), (71, 1)])
def test_every_head_size_and_group(stored: LayerFormat, dim: int, group: int, kv_heads: int) -> None:
    Case(stored, [(33, 5), (0, 2)], dim=dim, group=group, kv_heads=kv_heads).check()


@pytest.mark.slow
@pytest.mark.parametrize("stored", FORMATS, ids=name)
@pytest.mark.parametrize("block", [16, 32, 64, 128, 256])
def test_block_sizes(stored: LayerFormat, block: int) -> None:
    Case(stored, [(block - 2, 4), (block, 2), (2 * block + 5, 3)], block=block).check()
