"""Arenas that change their format where they lie."""

from __future__ import annotations

import pytest
import torch

from kvtide_kernels.block_view import BlockView
from kvtide_kernels.codec import decode, encode
from kvtide_kernels.cpu.moves import reencode_in_place
from kvtide_sizing.formats import BF16, INT4, INT8, VectorFormat


@pytest.mark.parametrize(("old", "new"), [(BF16, INT8), (BF16, INT4), (INT8, INT4)], ids=lambda one: one.name)
@pytest.mark.parametrize("head_dim", [64, 80, 128])
def test_re_encodes_where_it_lies(old: VectorFormat, new: VectorFormat, head_dim: int) -> None:
    """Every block keeps its number and has what the codec makes of what it had; what is won is free blocks."""
    torch.manual_seed(8)
    num_blocks, slots = 12, torch.arange(16)
    arena = torch.zeros(num_blocks, 2, 16 * old.vector_bytes(head_dim), dtype=torch.uint8)
    before = BlockView.of(arena, old, 16, head_dim)
    for block in range(num_blocks):
        before.write(torch.full((16,), block), slots, encode(old, torch.randn(16, 2, head_dim)))
    had = [decode(old, before.read(torch.full((16,), block), slots), head_dim) for block in range(num_blocks)]

    smaller = reencode_in_place(arena, old, new, head_dim=head_dim, block_size=16)
    assert smaller.data_ptr() == arena.data_ptr()
    assert len(smaller) == num_blocks * old.vector_bytes(head_dim) // new.vector_bytes(head_dim)
    after = BlockView.of(smaller, new, 16, head_dim)
    for block, vectors in enumerate(had):
        got, expected = after.read(torch.full((16,), block), slots), encode(new, vectors)
        assert got.scale is not None
        assert expected.scale is not None
        torch.testing.assert_close(got.scale, expected.scale, rtol=2**-10, atol=0)
        if new is INT8:
            assert torch.equal(got.data, expected.data)
        else:
            # A level may be the next one where rotations are summed in another order.
            levels, wanted = (torch.stack([x.data & 15, x.data >> 4]).int() for x in (got, expected))
            assert (levels - wanted).abs().max() <= 1
            assert (levels != wanted).float().mean() < 0.01


def test_refuses_to_grow() -> None:
    arena = torch.zeros(2, 1, 16 * INT8.vector_bytes(64), dtype=torch.uint8)
    with pytest.raises(ValueError, match="INT8 cannot become BF16 where they lie; there are BF16 to INT8"):
        reencode_in_place(arena, INT8, BF16, head_dim=64, block_size=16)
    with pytest.raises(ValueError, match="one piece of memory"):
        reencode_in_place(arena.expand(2, 3, -1), INT8, INT4, head_dim=64, block_size=16)
