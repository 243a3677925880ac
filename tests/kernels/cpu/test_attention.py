"""Attention on the CPU against softmax over what the formats keep, in every format and with all else poisoned."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtide_kernels.block_view import BlockView
from kvtide_kernels.codec import encode
from kvtide_kernels.cpu.arenas import check_served
from kvtide_kernels.cpu.attention import CpuAttention
from kvtide_kernels.cpu.library import library
from kvtide_kernels.pool import KVPool
from kvtide_kernels.served import SERVED_BLOCK_SIZES, SERVED_HEAD_DIMS
from kvtide_sizing.formats import BF16, FLOAT32, FP8, INT4, INT8, LayerFormat, VectorFormat
from kvtide_sizing.memory.kv import KvLayout, TableLayout
from tests.kernels.cpu.stored import FORMATS, Cache, check
from tests.kernels.narrow import narrow

# Rows are steps, columns sequences: how many new tokens each brings.
BORDERS = [[16, 15, 17, 1], [1, 1, 1, 1], [1, 1, 1, 1]]  # around a block border, all decode after a prefill
CHUNKS = [[5, 0, 64], [40, 3, 1], [1, 16, 1], [33, 1, 1]]  # chunks over borders beside decodes
UNEVEN = [[1, 200, 0], [1, 1, 64], [1, 1, 64], [1, 1, 1]]  # very different lengths in one step
LONG = [[500, 90], [400, 1], [1, 1], [130, 1], [1, 1]]  # decodes in several parts


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(5)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("steps", [BORDERS, CHUNKS, UNEVEN, LONG], ids=["borders", "chunks", "uneven", "long"])
def test_every_pair_of_formats(name: str, steps: list[list[int]]) -> None:
    check(Cache(FORMATS[name], num_blocks=90), steps)


@pytest.mark.parametrize("name", ["BF16-BF16", "INT8-INT4", "INT4-INT8"])
@pytest.mark.parametrize("head_dim", narrow(SERVED_HEAD_DIMS, [80, 112, 256]))
def test_every_head_size(head_dim: int, name: str) -> None:
    check(Cache(FORMATS[name], head_dim=head_dim, group=3), CHUNKS)


@pytest.mark.parametrize("name", ["BF16-BF16", "INT8-INT8", "INT4-INT4"])
@pytest.mark.parametrize(("kv_heads", "group"), [(3, 1), (1, 2), (2, 5), (1, 7), (1, 16), (1, 40), (1, 130)])
def test_every_way_to_share_heads(kv_heads: int, group: int, name: str) -> None:
    check(Cache(FORMATS[name], kv_heads=kv_heads, group=group), CHUNKS)


@pytest.mark.parametrize("name", ["BF16-BF16", "INT8-INT4"])
@pytest.mark.parametrize("block_size", SERVED_BLOCK_SIZES)
def test_every_block_size(block_size: int, name: str) -> None:
    check(Cache(FORMATS[name], block_size=block_size), UNEVEN)


@pytest.mark.parametrize("name", ["BF16-BF16", "INT8-INT8", "INT4-INT4"])
@pytest.mark.parametrize("window", narrow([1, 15, 16, 17, 70, 1000], [17, 70]))
def test_windows(window: int, name: str) -> None:
    check(Cache(FORMATS[name], windows=[window], num_blocks=90), CHUNKS)
    check(Cache(FORMATS[name], windows=[window], num_blocks=90), LONG)


@pytest.mark.parametrize("name", ["BF16-BF16", "INT8-INT4"])
@pytest.mark.parametrize(("soft_cap", "sinks"), [(2.0, False), (None, True), (30.0, True)])
def test_soft_capping_and_sinks(soft_cap: float | None, sinks: bool, name: str) -> None:
    check(Cache(FORMATS[name], soft_cap=soft_cap, sinks=sinks, num_blocks=90), LONG)


@pytest.mark.parametrize("instruction_set", ["plain", "avx2"])
@pytest.mark.parametrize("name", narrow(FORMATS, ["BF16-BF16", "INT8-INT4", "INT4-INT8"]))
def test_every_instruction_set(name: str, instruction_set: str) -> None:
    try:
        library(instruction_set)
    except ValueError as error:
        pytest.skip(str(error))
    check(Cache(FORMATS[name], head_dim=80, soft_cap=20.0, sinks=True, instruction_set=instruction_set), CHUNKS)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("head_dim", [64, 80, 256])
def test_thousands_of_tokens(head_dim: int, name: str) -> None:
    cache = Cache(FORMATS[name], head_dim=head_dim, kv_heads=1, group=4, block_size=64, num_blocks=160)
    long, longer = cache.sequence(), cache.sequence()
    cache.step([(long, 3000), (longer, 6000)])
    for news in ((1, 1), (100, 40), (1, 1)):
        for result in cache.step([(long, news[0]), (longer, news[1])]):
            result.check()


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    name=st.sampled_from(sorted(FORMATS)),
    head_dim=st.sampled_from(SERVED_HEAD_DIMS),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 9),
    block_size=st.sampled_from(SERVED_BLOCK_SIZES),
    windows=st.tuples(st.none() | st.integers(1, 200)),
    soft_cap=st.sampled_from([None, 15.0]),
    sinks=st.booleans(),
    bases=st.booleans(),
    recent=st.booleans(),
    steps=st.lists(st.lists(st.integers(0, 90), min_size=3, max_size=3).filter(any), min_size=1, max_size=4),
)
def test_shapes_that_nobody_thought_of(steps: list[list[int]], **shape: object) -> None:
    name = str(shape.pop("name"))
    check(Cache(FORMATS[name], num_blocks=120, **shape), steps)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", narrow(FORMATS, ["BF16-BF16", "INT8-INT4"]))
def test_a_sequence_has_the_same_bits_alone_and_in_a_batch(name: str) -> None:
    cache = Cache(FORMATS[name], kv_heads=2, group=3, num_blocks=400, bases=True)
    sequences = [cache.sequence() for _ in range(12)]
    cache.step([(held, 1 + 61 * index) for index, held in enumerate(sequences)])
    news = [1, 1, 40, 1, 1, 33, 1, 1, 1, 2, 1, 1]
    spans = [cache.span(held, new) for held, new in zip(sequences, news, strict=True)]
    query, key, value = cache.vectors(sum(news), 6), cache.vectors(sum(news), 2), cache.vectors(sum(news), 2)
    before = cache.pool.storage.clone()
    together = cache.attention.plan(spans).run(0, query, key, value).split(news)
    # A chunk leaves other recent tokens behind than it found.
    cache.pool.storage.copy_(before)
    for span, batched, q, k, v in zip(spans, together, *(x.split(news) for x in (query, key, value)), strict=True):
        assert torch.equal(cache.attention.plan([span]).run(0, q, k, v), batched)


def test_threads_change_nothing() -> None:
    """Nor which part of a sequence comes first, whose queries in the basis the others take."""
    cache = Cache(FORMATS["INT8-INT8"], num_blocks=200, bases=True)
    held = cache.sequence()
    cache.step([(held, 2000)])
    step = cache.attention.plan([cache.span(held, 1)])
    query, own = cache.vectors(1, 4), cache.vectors(1, 2)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = step.run(0, query, own, own)
        torch.set_num_threads(5)
        assert all(torch.equal(step.run(0, query, own, own), alone) for _ in range(20))
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("head_dim", narrow(SERVED_HEAD_DIMS, [80, 128]))
@pytest.mark.parametrize("stored", [BF16, INT8, INT4], ids=lambda stored: stored.name)
def test_stores_what_the_codec_encodes(stored: VectorFormat, head_dim: int) -> None:
    """Bit for bit; but where rotations are summed in another order, one level in ten thousand may be the next one."""
    cache = Cache(LayerFormat(stored, stored), head_dim=head_dim)
    own = cache.vectors(300, 2)
    own[7], own[8, :, 1:] = 0, 0
    held = cache.sequence()
    cache.attention.plan([cache.span(held, 300)]).run(0, cache.vectors(300, 4), own, own)
    view = BlockView.of(cache.pool.layers[0].key, stored, 16, head_dim)
    tokens = torch.arange(300)
    packed, expected = view.read(torch.tensor(held.tables[0].blocks)[tokens // 16], tokens % 16), encode(stored, own)
    if stored is not INT4:
        assert torch.equal(packed.data, expected.data)
        assert packed.scale is None or torch.equal(packed.scale, expected.scale)
        return
    for side, wanted in ((packed.scale, expected.scale), (packed.zero, expected.zero)):
        torch.testing.assert_close(side, wanted, rtol=2**-10, atol=1e-6)
    levels, wanted_levels = (torch.stack([x & 15, x >> 4]).int() for x in (packed.data, expected.data))
    assert (levels - wanted_levels).abs().max() <= 1
    assert (levels != wanted_levels).float().mean() < 1e-3


@pytest.mark.parametrize("stored", [INT8, INT4], ids=lambda stored: stored.name)
@pytest.mark.parametrize("side", ["key", "value"])
def test_what_cannot_be_stored_is_seen_in_the_result(stored: VectorFormat, side: str) -> None:
    """A NaN reaches its own sequence's result, and no other's."""
    cache = Cache(LayerFormat(stored, stored))
    sequences = [cache.sequence(), cache.sequence()]
    own = {"key": cache.vectors(40, 2), "value": cache.vectors(40, 2)}
    own[side][3] = float("nan")
    spans = [cache.span(held, 20) for held in sequences]
    cache.attention.plan(spans).run(0, cache.vectors(40, 4), own["key"], own["value"])
    for held in sequences:
        held.past = 20
    fresh = cache.vectors(2, 2)
    step = cache.attention.plan([cache.span(held, 1) for held in sequences])
    assert step.run(0, cache.vectors(2, 4), fresh, fresh).isnan().all((1, 2)).tolist() == [True, False]


def test_writes_only_its_own_slots() -> None:
    """Two tokens over a block border change their own vectors, scales and zero points, and nothing else."""
    cache = Cache(LayerFormat(INT8, INT4), kv_heads=3, num_blocks=8, recent=False)
    cache.pool.storage.zero_()
    held = cache.sequence()
    held.tables[0].blocks, held.past = [5, 2], 15
    own = torch.full((2, 3, 64), 3.0).bfloat16()
    own[..., 0] = -1.0
    cache.attention.plan([cache.span(held, 2)]).run(0, cache.vectors(2, 6), own, own)
    written = {tuple(place) for place in cache.pool.layers[0].key.nonzero().tolist()}
    # 16 vectors of 64 bytes, then 16 scales of 2: token 15 is the last of block 5, token 16 the first of block 2.
    places = {5: [*range(15 * 64, 16 * 64), 1024 + 30, 1024 + 31], 2: [*range(64), 1024, 1025]}
    assert written <= {(block, head, at) for block, ats in places.items() for head in range(3) for at in ats}
    assert {place[:2] for place in written} == {(block, head) for block in (5, 2) for head in range(3)}
    # 3 / 127 in float16, and every element its largest: 127.
    assert cache.pool.layers[0].key[5, :, 15 * 64 + 1 : 16 * 64].eq(127).all()
    assert cache.pool.layers[0].value[[0, 1, 3, 4, 6, 7]].eq(0).all()


@pytest.mark.parametrize(
    ("stored", "head_dim", "block_size", "message"),
    [
        (FP8, 64, 16, "no kernels for FP8; there are BF16, INT8, INT4"),
        (BF16, 100, 16, r"heads of 100; there are \(64, 80, 96, 112, 128, 192, 256\)"),
        (INT4, 64, 48, r"blocks of 48 tokens; there are \(16, 32, 64, 128, 256\)"),
    ],
)
def test_refuses_what_it_does_not_serve(stored: VectorFormat, head_dim: int, block_size: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_served(stored, head_dim, block_size)


def test_refuses_pools_that_it_does_not_serve() -> None:
    layout = KvLayout(16, 16 * 2 * 4 * 64, (TableLayout((0,), None),), 1)
    pool = KVPool.allocate(
        layout, [LayerFormat(FLOAT32, FLOAT32)], num_blocks=2, kv_heads=1, head_dim=64, device=torch.device("cpu")
    )
    with pytest.raises(ValueError, match="no kernels for FLOAT32; there are BF16, INT8, INT4"):
        CpuAttention(pool, scale=1.0)


def test_refuses_arenas_of_another_size() -> None:
    pool = Cache(FORMATS["INT8-INT8"], num_blocks=2).pool
    narrow = replace(pool.layers[0], value=pool.layers[0].value[..., :-1])
    with pytest.raises(
        ValueError, match=r"layer 0: values of INT8, .* need a uint8 tensor \[2, 2, 1056\].* \[2, 2, 1055\]"
    ):
        CpuAttention(replace(pool, layers=(narrow,)), scale=1.0)


def test_refuses_steps_of_another_dtype_or_shape() -> None:
    cache = Cache(FORMATS["BF16-BF16"])
    step = cache.attention.plan([cache.span(cache.sequence(), 3)])
    own = torch.zeros(3, 2, 64, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"3 tokens in torch.bfloat16 .* torch.float32 \[3, 4, 64\]"):
        step.run(0, torch.zeros(3, 4, 64), own, own)
    with pytest.raises(ValueError, match=r"torch.bfloat16 \[2, 2, 64\]"):
        step.run(0, torch.zeros(3, 4, 64, dtype=torch.bfloat16), own[:2], own)
    with pytest.raises(ValueError, match="5 query heads are no multiple of 2"):
        step.run(0, torch.zeros(3, 5, 64, dtype=torch.bfloat16), own, own)
