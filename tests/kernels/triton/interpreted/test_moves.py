"""Copies of blocks, and packing an arena tighter in place, interpreted."""

from __future__ import annotations

import pytest
import torch

from kvtide_kernels.triton import moves
from kvtide_kernels.triton.arena import Arena, ArenaShape
from kvtide_sizing.formats import BF16, INT4, INT8, LayerFormat, VectorFormat
from tests.kernels.triton.interpreted.oracle import Case, kept, put


def filled(stored: VectorFormat, vectors: torch.Tensor, block_size: int) -> Arena:
    """vectors [blocks, block_size, kv_heads, dim], stored."""
    shape = ArenaShape(stored, vectors.shape[2], vectors.shape[3], block_size)
    arena = shape.view(torch.full((len(vectors) * shape.block_bytes,), 255, dtype=torch.uint8))
    for block, rows in enumerate(vectors):
        for row, x in enumerate(rows):
            put(arena, block, row, x)
    return arena


def test_copies_whole_blocks_in_every_arena() -> None:
    arenas = [
        ArenaShape(stored, 3, 80, 16).view(torch.randint(256, (9 * 3 * 16 * 160,), dtype=torch.uint8))
        for stored in (BF16, INT8, INT4)
    ]
    before = [arena.storage.clone() for arena in arenas]
    moves.copy_blocks(arenas, [(2, 7), (2, 0), (5, 1)])
    for arena, was in zip(arenas, before, strict=True):
        was[[7, 0, 1]] = was[[2, 2, 5]]
        assert torch.equal(arena.storage, was)


@pytest.mark.parametrize("pairs", [[(1, 2), (2, 3)], [(1, 3), (2, 3)]])
def test_refuses_copies_that_depend_on_their_order(pairs: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="a target is no source"):
        moves.copy_blocks([filled(BF16, torch.zeros(4, 16, 1, 64), 16)], pairs)


@pytest.mark.parametrize("dim", [pytest.param(64, marks=pytest.mark.slow), 96])
@pytest.mark.parametrize(("old", "new"), [(BF16, INT8), (INT8, INT4), (BF16, INT4)], ids=lambda one: one.name)
def test_packs_in_place_without_losing_a_block(
    old: VectorFormat, new: VectorFormat, dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five blocks, two at a time: every one is what storing it anew gives."""
    vectors = torch.randn(5, 32, 2, dim).bfloat16().float()
    arena = filled(old, vectors, 32)
    monkeypatch.setattr(moves, "STAGING_BYTES", 2 * arena.shape.block_bytes)
    packed = moves.reencode(arena, new, 5)
    assert packed.storage.data_ptr() == arena.storage.data_ptr()
    assert packed.num_blocks == arena.storage.numel() // packed.shape.block_bytes > 5
    expected = filled(new, kept(vectors, old), 32)
    different = (packed.storage[:5] != expected.storage).float().mean().item()
    assert different < (0.01 if new == INT4 else 1e-9)


@pytest.mark.parametrize(("old", "to"), [(INT4, INT8), (INT8, BF16), (INT8, INT8)], ids=lambda one: one.name)
def test_refuses_what_is_not_tighter(old: VectorFormat, to: VectorFormat) -> None:
    with pytest.raises(ValueError, match=f"{old.name} blocks are not packed to {to.name}"):
        moves.reencode(filled(old, torch.zeros(2, 16, 1, 64), 16), to, 2)


def test_attention_goes_on_after_packing() -> None:
    case = Case(LayerFormat(BF16, BF16), [(40, 1)])
    case.build()
    packed = [moves.reencode(arena, INT8, arena.num_blocks) for arena in (case.cache.key, case.cache.value)]
    case.cache = type(case.cache)(*packed, 0)
    case.stored = LayerFormat(INT8, INT8)
    torch.testing.assert_close(case.run(), case.expected(), atol=3e-4, rtol=1e-3)
