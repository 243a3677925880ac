"""A pool that changes its formats in its own memory, against a copy that was decoded and encoded beside it."""

from __future__ import annotations

import random

import pytest
import torch

from kvtide_kernels import reencode as module
from kvtide_kernels.block_view import BlockView, RecentView
from kvtide_kernels.codec import decode, encode
from kvtide_kernels.key_basis import KeyBasis
from kvtide_kernels.pool import KVPool, StoredLayer
from kvtide_kernels.reencode import UsedBlocks, reencode
from kvtide_sizing.formats import BF16, INT4, INT8, LayerFormat, VectorFormat
from kvtide_sizing.memory.kv import KvLayout, TableLayout

PLAIN, EIGHT, K8V4, FOUR = (
    LayerFormat(key, value) for key, value in ((BF16, BF16), (INT8, INT8), (INT8, INT4), (INT4, INT4))
)
SIZE, HEADS, DIM = 16, 2, 64
# Four layers in two slots of two tables: one attends to everything, the other to the last tokens.
TABLES = (TableLayout((0, 2), None), TableLayout((1, 3), 24))


def layout_of(formats: list[LayerFormat]) -> KvLayout:
    width = sum(
        max(side.vector_bytes(DIM) for side in sides)
        for slot in ((0, 1), (2, 3))
        for sides in ([formats[layer].key for layer in slot], [formats[layer].value for layer in slot])
    )
    recent = 32 if any(each.keeps_recent for each in formats) else 0
    return KvLayout(SIZE, SIZE * HEADS * width, TABLES, step_tokens=64, recent=recent)


def pool_of(formats: list[LayerFormat], num_blocks: int) -> KVPool:
    return KVPool.allocate(
        layout_of(formats), formats, num_blocks=num_blocks, kv_heads=HEADS, head_dim=DIM, device=torch.device("cpu")
    )


def read(arena: torch.Tensor, stored: VectorFormat, block: int) -> torch.Tensor:
    """A block's vectors, [slots, heads, dim]."""
    slots = torch.arange(SIZE)
    return decode(stored, BlockView.of(arena, stored, SIZE, DIM).read(torch.full((SIZE,), block), slots), DIM)


def fill(layer: StoredLayer, block: int) -> None:
    slots, at = torch.arange(SIZE), torch.full((SIZE,), block)
    for arena, stored in ((layer.key, layer.format.key), (layer.value, layer.format.value)):
        BlockView.of(arena, stored, SIZE, DIM).write(at, slots, encode(stored, torch.randn(SIZE, HEADS, DIM)))


def some_basis() -> KeyBasis:
    matrix = torch.randn(HEADS, DIM, DIM)
    return KeyBasis(matrix, matrix.inverse().contiguous(), torch.randn(HEADS, DIM))


def expected(vectors: torch.Tensor, old: VectorFormat, new: VectorFormat, basis: KeyBasis | None) -> torch.Tensor:
    turned = vectors if basis is None else basis.keys(vectors)
    return turned if old is new else decode(new, encode(new, turned), DIM)


@pytest.mark.parametrize("staged", [1, 20_000, 1 << 20])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ([PLAIN] * 4, [EIGHT] * 4),
        ([PLAIN] * 4, [K8V4] * 4),
        ([PLAIN] * 4, [FOUR] * 4),
        ([EIGHT] * 4, [K8V4] * 4),
        ([K8V4] * 4, [FOUR] * 4),
        ([PLAIN] * 4, [PLAIN, PLAIN, K8V4, FOUR]),
        ([LayerFormat(INT8, BF16)] * 4, [LayerFormat(INT4, BF16)] * 4),
    ],
    ids=["to INT8", "to K8V4", "to INT4", "INT8 to K8V4", "K8V4 to INT4", "to a mixture", "keys alone"],
)
def test_every_used_block_is_what_the_codec_makes_of_it(
    old: list[LayerFormat], new: list[LayerFormat], staged: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is staged at once, and with everything else NaN, which touches nothing."""
    monkeypatch.setattr(module, "_STAGED_BYTES", staged)
    torch.manual_seed(2)
    pool = pool_of(old, 23)
    pool.storage.fill_(255)  # NaN in BF16 and in float16
    ids = random.Random(4).sample(range(23), 17)
    used = [UsedBlocks(ids[:5], ids[5:8]), UsedBlocks(ids[8:15], ids[15:])]
    if not pool.layout.recent:
        used = [UsedBlocks(each.tokens) for each in used]
    bases = {layer: some_basis() for layer in (0, 1, 2)}
    had, recent = {}, {}
    for number, layer in enumerate(pool.layers):
        for block in used[layer.table].tokens:
            fill(layer, block)
            had[number, block] = (
                read(layer.key, layer.format.key, block),
                read(layer.value, layer.format.value, block),
            )
        for block in used[layer.table].recent:
            for arena in (layer.key, layer.value):
                RecentView.of(arena, pool.layout, DIM).vectors[block] = torch.randn(HEADS, SIZE // 4, DIM)
            recent[number, block] = [
                RecentView.of(arena, pool.layout, DIM).vectors[block].clone() for arena in (layer.key, layer.value)
            ]
    layout = layout_of(new)
    num_blocks = pool.nbytes // layout.block_bytes
    assert num_blocks > 23
    smaller = reencode(pool, layout, new, num_blocks=num_blocks, used=used, bases=bases)
    assert smaller.storage.data_ptr() == pool.storage.data_ptr()
    assert smaller.num_blocks == num_blocks
    for (number, block), (key, value) in had.items():
        layer, before = smaller.layers[number], old[number]
        turned = layer.format.has_key_basis and not before.has_key_basis
        basis = bases.get(number) if turned else None
        for arena, one, other, vectors, own_basis in (
            (layer.key, before.key, layer.format.key, key, basis),
            (layer.value, before.value, layer.format.value, value, None),
        ):
            wanted = expected(vectors, one, other, own_basis)
            # Products of another shape may round a level to the next one.
            torch.testing.assert_close(read(arena, other, block), wanted, rtol=0, atol=wanted.abs().max().item() / 4)
            assert (read(arena, other, block) - wanted).abs().gt(1e-4).float().mean() < 0.01
    for (number, block), sides in recent.items():
        layer = smaller.layers[number]
        for arena, vectors in zip((layer.key, layer.value), sides, strict=True):
            assert torch.equal(RecentView.of(arena, layout, DIM).vectors[block], vectors)


def test_slots_of_a_block_that_nobody_wrote_touch_no_other() -> None:
    """A block of one token: the other places are NaN before and may be anything behind it."""
    pool = pool_of([PLAIN] * 4, 3)
    pool.storage.fill_(255)
    vector = torch.randn(1, HEADS, DIM)
    BlockView.of(pool.layers[0].key, BF16, SIZE, DIM).write(torch.tensor([1]), torch.tensor([5]), encode(BF16, vector))
    had, basis = read(pool.layers[0].key, BF16, 1)[5], some_basis()
    layout = layout_of([FOUR] * 4)
    smaller = reencode(
        pool, layout, [FOUR] * 4, num_blocks=10, used=[UsedBlocks([1]), UsedBlocks([])], bases={0: basis}
    )
    got = read(smaller.layers[0].key, INT4, 1)
    wanted = basis.keys(had[None])[0]
    assert (got[5] - wanted).abs().max() < wanted.abs().max() / 4
    assert got[[*range(5), *range(6, SIZE)]].isnan().all()


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ([EIGHT] * 4, [PLAIN] * 4, "keys of layer 0 are INT8, of which no BF16 can be made"),
        ([PLAIN, FOUR, PLAIN, PLAIN], [EIGHT] * 4, "keys of layer 1 are INT4, of which no INT8 can be made"),
    ],
)
def test_refuses_what_would_grow_and_leaves_everything(
    old: list[LayerFormat], new: list[LayerFormat], says: str
) -> None:
    pool = pool_of(old, 4)
    pool.storage.random_(0, 256)
    before = pool.storage.clone()
    with pytest.raises(ValueError, match=says):
        reencode(pool, layout_of(new), new, num_blocks=4, used=[UsedBlocks([0]), UsedBlocks([])], bases={})
    assert torch.equal(pool.storage, before)


def test_refuses_to_lose_blocks() -> None:
    pool = pool_of([PLAIN] * 4, 4)
    with pytest.raises(ValueError, match="blocks keep their ids: 4 do not become 3"):
        reencode(
            pool, layout_of([EIGHT] * 4), [EIGHT] * 4, num_blocks=3, used=[UsedBlocks([]), UsedBlocks([])], bases={}
        )
