"""What no kernel serves is refused when it is asked for, by name, with what is served."""

from __future__ import annotations

import pytest
import torch

from kvtide_kernels.triton.arena import Arena, ArenaShape
from kvtide_kernels.triton.attention import Heads, LayerCache, TritonAttention
from kvtide_kernels.triton.plan import split_tokens
from kvtide_sizing.formats import BF16, FP8, INT8, VectorFormat
from kvtide_sizing.memory.kv import KvLayout, TableLayout


@pytest.mark.parametrize(
    ("stored", "dim", "block", "message"),
    [
        (FP8, 64, 16, "no format FP8; they serve BF16, INT8, INT4"),
        (INT8, 100, 16, "no head size 100; they serve 64, 80, 96, 112, 128, 192, 256"),
        (INT8, 64, 24, "no block size 24; they serve 16, 32, 64, 128, 256"),
    ],
)
def test_shapes(stored: VectorFormat, dim: int, block: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ArenaShape(stored, 2, dim, block)


def arena(stored: VectorFormat, kv_heads: int = 2, dim: int = 64) -> Arena:
    shape = ArenaShape(stored, kv_heads, dim, 16)
    return shape.view(torch.zeros(shape.block_bytes, dtype=torch.uint8))


@pytest.mark.parametrize(
    ("cache", "heads", "block", "message"),
    [
        (LayerCache(arena(BF16), arena(BF16, 4), 0), 8, 16, "alike in KV heads, head size and block size"),
        (LayerCache(arena(BF16), arena(INT8), 0), 7, 16, "7 query heads are no multiple of 2 KV heads"),
        (LayerCache(arena(BF16), arena(INT8), 1), 8, 16, "served by table 1, but the layout has 1"),
        (LayerCache(arena(BF16), arena(INT8), 0), 8, 32, "blocks of 16 tokens, but the layout of 32"),
    ],
)
def test_layers(cache: LayerCache, heads: int, block: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TritonAttention(KvLayout(block, 0, (TableLayout((0,), None),), 1), [cache], Heads(heads, 1.0))


def test_bytes_of_another_shape() -> None:
    with pytest.raises(ValueError, match=r"is uint8 \[2, 2, 1056\], but got torch.uint8 \[2, 2, 1024\]"):
        Arena(ArenaShape(INT8, 2, 64, 16), torch.zeros(2, 2, 1024, dtype=torch.uint8))


@pytest.mark.parametrize(
    ("reaches", "heads", "expected"),
    [
        ([32768], 8, 768),  # 32768 * 8 / 396 = 662 tokens a program, in units of 256
        ([100], 8, None),  # less than one unit
        ([4096] * 128, 8, None),  # 1024 programs fill the device already
        ([131072] + [64] * 127, 8, 2816),  # they do, but one is far longer: 139200 * 8 / 396 = 2812
        ([], 8, None),
    ],
)
def test_splits(reaches: list[int], heads: int, expected: int | None) -> None:
    """An H200 has 132 processors, of three programs each."""
    assert split_tokens(reaches, heads, 3 * 132) == expected
