"""Decode, interpreted, against dense attention over what the formats leave of K and V."""

from __future__ import annotations

import pytest
import torch

from kvtide_kernels.triton.attention import TritonAttention
from kvtide_sizing.formats import BF16, INT4, INT8, LayerFormat
from tests.kernels.triton.interpreted.oracle import FORMATS, Case, attend, name

SOME = [LayerFormat(BF16, BF16), pytest.param(LayerFormat(INT8, INT8), marks=pytest.mark.slow), LayerFormat(INT8, INT4)]

# A decode has one new token: the first of all, and lengths around a block's border of 16.
BORDERS = [(0, 1), (1, 1), (14, 1), (15, 1), (16, 1), (17, 1)]


def test_the_oracle_is_torchs_attention() -> None:
    query, key, value = torch.randn(5, 6, 64), torch.randn(9, 2, 64), torch.randn(9, 2, 64)
    sides = (one.transpose(0, 1)[None] for one in (query, key, value))
    mask = torch.ones(5, 9, dtype=torch.bool).tril(4)
    theirs = torch.nn.functional.scaled_dot_product_attention(*sides, attn_mask=mask, scale=0.2, enable_gqa=True)
    torch.testing.assert_close(attend(query, key, value, 0.2), theirs[0].transpose(0, 1))


@pytest.mark.parametrize("stored", FORMATS, ids=name)
def test_lengths_around_a_block_border(stored: LayerFormat) -> None:
    Case(stored, BORDERS).check()


@pytest.mark.parametrize("stored", FORMATS[:4], ids=name)
def test_a_head_size_that_is_no_power_of_two(stored: LayerFormat) -> None:
    Case(stored, [(20, 1)], dim=96).check()


@pytest.mark.slow
@pytest.mark.parametrize("stored", FORMATS, ids=name)
@pytest.mark.parametrize("dim", [64, 80, 96, 112, 128, 192, 256])
@pytest.mark.parametrize("group", [1, 2, 4, 5, 7, 8, 16])
def test_every_head_size_and_group(stored: LayerFormat, dim: int, group: int) -> None:
    Case(stored, [(33, 1), (5, 1)], dim=dim, group=group, kv_heads=2).check()


@pytest.mark.parametrize("stored", SOME, ids=name)
@pytest.mark.parametrize(("group", "kv_heads"), [(1, 2), (16, 1), (71, 1)], ids=["MHA", "GQA", "MQA"])
def test_groups(stored: LayerFormat, group: int, kv_heads: int) -> None:
    Case(stored, [(20, 1)], group=group, kv_heads=kv_heads).check()


@pytest.mark.parametrize("stored", SOME, ids=name)
@pytest.mark.parametrize("block", [*(pytest.param(one, marks=pytest.mark.slow) for one in (16, 32, 64, 128)), 256])
def test_block_sizes(stored: LayerFormat, block: int) -> None:
    Case(stored, [(block - 2, 1), (block, 1), (2 * block + 5, 1)], block=block).check()


@pytest.mark.parametrize("stored", SOME, ids=name)
def test_very_different_lengths_are_split_and_merged(stored: LayerFormat) -> None:
    """On a device that runs 64 programs at once 601 tokens are three items, a token is one, and 301 are two."""
    case = Case(stored, [(600, 1), (0, 1), (300, 1)], block=32, programs=64)
    case.check()
    parts = case.attention().plan(case.sequences()).tables[0].parts
    assert parts.tolist() == [[0, 0, 3], [1, 3, 1], [2, 4, 2]]


@pytest.mark.parametrize("window", [1, 15, 16, 17, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.parametrize("stored", SOME, ids=name)
def test_windows(stored: LayerFormat, window: int) -> None:
    Case(stored, [(0, 1), (16, 1), (40, 1), (330, 1)], window=window, programs=64).check()


@pytest.mark.parametrize("stored", [LayerFormat(BF16, BF16), LayerFormat(INT8, INT4)], ids=name)
@pytest.mark.parametrize("programs", [1, 64])
def test_soft_cap_and_sinks(stored: LayerFormat, programs: int) -> None:
    Case(stored, [(30, 1), (300, 1)], soft_cap=4.0, sinks=True, programs=programs).check()


def test_a_soft_cap_holds_scores_that_overflow() -> None:
    case = Case(LayerFormat(INT8, INT8), [(30, 1)], soft_cap=2.0)
    case.build()
    case.query *= 1e4
    torch.testing.assert_close(case.run(), case.expected(), atol=3e-4, rtol=1e-3)


def test_refuses_query_heads_that_do_not_divide() -> None:
    case = Case(LayerFormat(BF16, BF16), [(0, 1)], group=7, kv_heads=2)
    case.build()
    with pytest.raises(ValueError, match="15 query heads are no multiple of 2 KV heads"):
        TritonAttention(case.pool, query_heads=15, scale=1.0)
