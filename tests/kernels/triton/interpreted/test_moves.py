"""Copies of blocks, and packing an arena tighter in place, interpreted."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from kvtide_kernels.pool import StoredLayer
from kvtide_kernels.triton import moves
from kvtide_kernels.triton.arena import Arena
from kvtide_sizing.formats import BF16, INT4, INT8, LayerFormat, VectorFormat
from tests.kernels.triton.interpreted.oracle import Case, kept, put


def filled(stored: VectorFormat, vectors: torch.Tensor, block_size: int) -> Arena:
    """vectors [blocks, block_size, kv_heads, dim], stored."""
    kv_heads, dim = vectors.shape[2:]
    wide = block_size * stored.vector_bytes(dim)
    arena = Arena(stored, dim, block_size, torch.full((len(vectors), kv_heads, wide), 255, dtype=torch.uint8))
    for block, rows in enumerate(vectors):
        for row, x in enumerate(rows):
            put(arena, block, row, x)
    return arena


def layer(key: torch.Tensor, value: torch.Tensor) -> StoredLayer:
    """A layer of such bytes, whatever they are."""
    return StoredLayer(LayerFormat(BF16, BF16), key, value, 0)


def test_copies_whole_blocks_in_every_arena() -> None:
    """Of a layer that fills its slot, and of one whose heads lie further apart."""
    wide, narrow = torch.randint(256, (4, 9, 3, 16 * 160), dtype=torch.uint8).split(2)
    layers = [layer(wide[0], wide[1]), layer(narrow[0, ..., : 16 * 82], narrow[1, ..., : 16 * 44])]
    before = [side.clone() for one in layers for side in (one.key, one.value)]
    moves.copy_blocks(layers, [(2, 7), (2, 0), (5, 1)])
    for arena, was in zip([side for one in layers for side in (one.key, one.value)], before, strict=True):
        was[[7, 0, 1]] = was[[2, 2, 5]]
        assert torch.equal(arena, was)


@pytest.mark.parametrize("pairs", [[(1, 2), (2, 3)], [(1, 3), (2, 3)]])
def test_refuses_copies_that_depend_on_their_order(pairs: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="a target is no source"):
        moves.copy_blocks([layer(*torch.zeros(2, 4, 1, 64, dtype=torch.uint8))], pairs)


@pytest.mark.parametrize("dim", [pytest.param(64, marks=pytest.mark.slow), 96])
@pytest.mark.parametrize(("old", "new"), [(BF16, INT8), (INT8, INT4), (BF16, INT4)], ids=lambda one: one.name)
def test_packs_in_place_without_losing_a_block(
    old: VectorFormat, new: VectorFormat, dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five blocks, two at a time: every one is what storing it anew gives."""
    vectors = torch.randn(5, 32, 2, dim).bfloat16().float()
    arena = filled(old, vectors, 32)
    monkeypatch.setattr(moves, "STAGING_BYTES", 2 * arena.storage[0].numel())
    packed = moves.reencode(arena, new, 5)
    assert packed.storage.data_ptr() == arena.storage.data_ptr()
    assert packed.num_blocks == arena.storage.numel() // packed.storage[0].numel() > 5
    expected = filled(new, kept(vectors, old), 32)
    different = (packed.storage[:5] != expected.storage).float().mean().item()
    assert different < (0.01 if new == INT4 else 1e-9)


@pytest.mark.parametrize(("old", "to"), [(INT4, INT8), (INT8, BF16), (INT8, INT8)], ids=lambda one: one.name)
def test_refuses_what_is_not_tighter(old: VectorFormat, to: VectorFormat) -> None:
    with pytest.raises(ValueError, match=f"{old.name} blocks are not packed to {to.name}"):
        moves.reencode(filled(old, torch.zeros(2, 16, 1, 64), 16), to, 2)


def test_refuses_an_arena_with_gaps() -> None:
    wide = torch.zeros(2, 3, 16 * 128, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"one run of bytes, but \[2, 3, 1056\] has gaps between heads"):
        moves.reencode(Arena(INT8, 64, 16, wide[..., : 16 * 66]), INT4, 2)


def test_attention_goes_on_after_packing() -> None:
    case = Case(LayerFormat(BF16, BF16), [(40, 1)])
    case.build()
    key, value = (moves.reencode(arena, INT8, arena.num_blocks).storage for arena in (case.key, case.value))
    case.stored = LayerFormat(INT8, INT8)
    case.pool = dataclasses.replace(case.pool, layers=(StoredLayer(case.stored, key, value, 0),))
    torch.testing.assert_close(case.run(), case.expected(), atol=3e-4, rtol=1e-3)
