"""The pool's bytes, and where layers lie in it."""

from __future__ import annotations

import pytest
import torch

from kvtide_kernels.pool import KVPool
from kvtide_sizing.formats import BF16, FP8, INT4, INT8, LayerFormat
from kvtide_sizing.memory.kv import KvLayout, TableLayout

PLAIN, K8V4, FOUR = LayerFormat(BF16, BF16), LayerFormat(INT8, INT4), LayerFormat(INT4, INT4)


def allocate(layout: KvLayout, formats: list[LayerFormat], *, num_blocks: int, head_dim: int) -> KVPool:
    return KVPool.allocate(
        layout, formats, num_blocks=num_blocks, kv_heads=3, head_dim=head_dim, device=torch.device("cpu")
    )


def smollm2(bytes_per_token: int) -> KvLayout:
    return KvLayout(64, bytes_per_token * 64, (TableLayout(tuple(range(30)), None),), step_tokens=512)


@pytest.mark.parametrize(
    ("stored", "bytes_per_token"),
    [
        (PLAIN, 23_040),  # 2 sides x 30 layers x 3 KV heads x 64 x 2 bytes
        (K8V4, 30 * 3 * (66 + 36)),  # 64 bytes and a scale; 32 bytes, a scale and a zero
        (FOUR, 30 * 3 * (36 + 36)),
    ],
)
def test_bytes(stored: LayerFormat, bytes_per_token: int) -> None:
    pool = allocate(smollm2(bytes_per_token), [stored] * 30, num_blocks=2, head_dim=64)
    assert pool.nbytes == bytes_per_token * 64 * 2


def test_refuses_heads_that_were_not_planned() -> None:
    # 2 blocks of 64 tokens: 2 sides x 30 layers x 3 heads x 32 x 2 bytes = 11,520 a token
    with pytest.raises(ValueError, match="take 1474560 bytes, but the layout plans 2949120"):
        allocate(smollm2(23_040), [PLAIN] * 30, num_blocks=2, head_dim=32)


def test_refuses_a_format_that_nothing_writes() -> None:
    with pytest.raises(ValueError, match="no codec for FP8"):
        allocate(smollm2(11_520), [LayerFormat(FP8, FP8)] * 30, num_blocks=2, head_dim=64)


def test_layers_of_one_table_have_places_of_their_own() -> None:
    """The layers of a table write the same block, each to its slot: nothing is left over, nothing overwritten."""
    tables = (TableLayout((2, 5), None), TableLayout((0, 1), 32), TableLayout((3, 4), 32))
    pool = allocate(KvLayout(16, 2 * 2 * 3 * 16 * 16 * 2, tables, 64), [PLAIN] * 6, num_blocks=6, head_dim=16)
    assert [layer.table for layer in pool.layers] == [1, 1, 0, 2, 2, 0]
    blocks = {0: (0, 5), 1: (1, 3), 2: (2, 4)}  # each table's
    for number, layer in enumerate(pool.layers):
        for block in blocks[layer.table]:
            layer.key[block], layer.value[block] = number + 1, number + 101
    for number, layer in enumerate(pool.layers):
        for block in blocks[layer.table]:
            assert layer.key[block].eq(number + 1).all()
            assert layer.value[block].eq(number + 101).all()
    assert pool.storage.ne(0).all()


def test_a_slot_is_as_wide_as_its_widest_layer() -> None:
    """Layer 0 in BF16 and layer 1 in INT4 have the same slot of tables of their own: a block holds either."""
    tables = (TableLayout((0,), None), TableLayout((1,), 32))
    pool = allocate(KvLayout(16, 2 * 3 * 16 * 16 * 2, tables, 64), [PLAIN, FOUR], num_blocks=4, head_dim=16)
    wide, narrow = pool.layers
    assert wide.key.shape == (4, 3, 16 * 32)
    assert narrow.key.shape == (4, 3, 16 * 12)
    narrow.key[1], narrow.value[1], wide.key[2], wide.value[2] = 1, 1, 2, 2
    assert wide.key[2].eq(2).all()
    assert narrow.key[1].eq(1).all()
    assert pool.storage.count_nonzero() == 2 * 3 * 16 * (32 + 12)


@pytest.mark.parametrize("pairs", [[(1, 4), (5, 0)], [(1, 4), (4, 2)]], ids=["apart", "one was copied to"])
def test_copies_blocks_and_nothing_else(pairs: list[tuple[int, int]]) -> None:
    """In all slots, as wide as the widest layer; all that is copied is what was there before any of it."""
    tables = (TableLayout((0, 2), None), TableLayout((1, 3), 32))
    layout = KvLayout(16, 2 * 3 * 16 * (32 + 12), tables, 64)
    pool = allocate(layout, [PLAIN, FOUR, FOUR, FOUR], num_blocks=6, head_dim=16)
    pool.storage.random_(0, 256)
    before = [side.clone() for layer in pool.layers for side in (layer.key, layer.value)]
    pool.copy_blocks(pairs)
    for side, was in zip((side for layer in pool.layers for side in (layer.key, layer.value)), before, strict=True):
        expected = was.clone()
        for source, target in pairs:
            expected[target] = was[source]
        assert torch.equal(side, expected)
