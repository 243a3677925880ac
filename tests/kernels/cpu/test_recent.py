"""Recent tokens in BF16, and keys in a basis: the CPU against the reference, over a pool that is NaN elsewhere."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from kvtide_kernels.block_view import RecentView
from kvtide_kernels.cpu.attention import CpuAttention
from kvtide_kernels.served import SERVED_BLOCK_SIZES, SERVED_HEAD_DIMS
from tests.kernels.cpu.stored import FORMATS, Cache, check
from tests.kernels.narrow import narrow

KEEPING = [name for name in FORMATS if "INT4" in name]
WITH_A_BASIS = [name for name in FORMATS if not name.startswith("BF16")]

# Rows are steps, columns sequences: how many new tokens each brings.
AROUND = [[30, 31, 32, 33], [1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1], [2, 31, 32, 33], [1, 1, 1, 1]]
LONG = [[500, 40], [1, 33], [28, 1], [1, 450], [1, 24], [1, 1]]  # decodes in parts that end among recent tokens


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(7)


@pytest.mark.parametrize("name", KEEPING)
@pytest.mark.parametrize("steps", [AROUND, LONG], ids=["around", "long"])
def test_every_pair_of_formats(name: str, steps: list[list[int]]) -> None:
    check(Cache(FORMATS[name], bases=True, num_blocks=120), steps)


@pytest.mark.parametrize("block_size", SERVED_BLOCK_SIZES)
@pytest.mark.parametrize("name", ["INT8-INT4", "INT4-INT4"])
def test_every_block_size(name: str, block_size: int) -> None:
    """Blocks of 16 have 4 recent tokens each, blocks of 256 all of them and room."""
    check(Cache(FORMATS[name], block_size=block_size, num_blocks=140), AROUND)


@pytest.mark.parametrize("head_dim", narrow(SERVED_HEAD_DIMS, [80, 256]))
@pytest.mark.parametrize("name", ["INT8-INT8", "INT4-INT4"])
def test_bases_of_every_head_size(name: str, head_dim: int) -> None:
    check(Cache(FORMATS[name], head_dim=head_dim, group=3, bases=True, num_blocks=120), AROUND)


@pytest.mark.parametrize("name", narrow(WITH_A_BASIS, ["INT8-INT8", "INT4-INT4"]))
@pytest.mark.parametrize(("soft_cap", "sinks"), [(20.0, False), (None, True)])
def test_bases_with_what_sees_a_constant(name: str, soft_cap: float | None, sinks: bool) -> None:
    check(Cache(FORMATS[name], soft_cap=soft_cap, sinks=sinks, bases=True, num_blocks=120), LONG)


@pytest.mark.parametrize("window", narrow([1, 5, 16, 31, 32, 33, 70], [16, 33]))
@pytest.mark.parametrize("name", ["INT8-INT4", "INT4-INT4"])
def test_windows(name: str, window: int) -> None:
    for steps in (AROUND, LONG):
        check(Cache(FORMATS[name], windows=[window], bases=True, num_blocks=120), steps)


@pytest.mark.parametrize("group", [1, 4, 16, 130])
def test_every_way_to_share_heads(group: int) -> None:
    check(Cache(FORMATS["INT4-INT4"], group=group, kv_heads=1, bases=True, num_blocks=120), AROUND)


@pytest.mark.parametrize("instruction_set", ["plain", "avx2"])
@pytest.mark.parametrize("name", ["INT8-INT8", "INT8-INT4", "INT4-BF16", "INT4-INT4"])
def test_every_instruction_set(name: str, instruction_set: str) -> None:
    cache = Cache(FORMATS[name], head_dim=80, bases=True, instruction_set=instruction_set, num_blocks=120)
    check(cache, AROUND)


@pytest.mark.parametrize("lag", [0, 1, 20, 31, 32, 100])
def test_what_came_from_elsewhere_is_read_as_it_is_stored(lag: int) -> None:
    """A fork's recent blocks are new: NaN before recent_from, until it has brought as many tokens itself."""
    cache = Cache(FORMATS["INT4-INT4"], bases=True, num_blocks=120)
    held = cache.sequence()
    cache.step([(held, 90)])
    held.recent_from = held.past
    for block in held.tables[0].recent:
        cache.pool.layers[0].key[block], cache.pool.layers[0].value[block] = 255, 255
    for new in [lag, *[1] * 3, 40, 1]:
        if new:
            [result] = cache.step([(held, new)])
            result.check()


def test_recent_tokens_are_better_than_what_is_stored() -> None:
    """By what BF16 is better than four bits: of a decode after 31 tokens nothing is lost but by rounding."""
    errors = []
    for recent in (True, False):
        cache = Cache(FORMATS["INT4-INT4"], recent=recent)
        held = cache.sequence()
        cache.step([(held, 31)])
        query, key, value = cache.vectors(1, 4), cache.vectors(1, 2), cache.vectors(1, 2)
        got = cache.attention.plan([cache.span(held, 1)]).run(0, query, key, value)
        keys, values = (
            torch.cat([*side[0], new])[None].transpose(1, 2) for side, new in ((held.keys, key), (held.values, value))
        )
        exact = scaled_dot_product_attention(
            query[None].transpose(1, 2).double(), keys.double(), values.double(), enable_gqa=True
        )
        errors.append((got - exact[0].transpose(0, 1)).abs().max().item())
    assert errors[0] < 0.02
    assert errors[1] > 0.1


@pytest.mark.parametrize("steps", [[40], [1, 1, 1], [33, 1, 5]])
def test_rings_hold_the_last_tokens_in_bf16(steps: list[int]) -> None:
    """Each at its number modulo 32, keys and values both as they came, as there is no basis; others stay NaN."""
    cache = Cache(FORMATS["INT8-INT4"])
    held = cache.sequence()
    for new in steps:
        cache.step([(held, new)])
    for arena, own in ((cache.pool.layers[0].key, held.keys[0]), (cache.pool.layers[0].value, held.values[0])):
        ring = RecentView.of(arena, cache.layout, 64).vectors[held.tables[0].recent].transpose(1, 2).flatten(0, 1)
        tokens = torch.cat(own)
        for token in range(len(tokens))[-32:]:
            assert torch.equal(ring[token % 32], tokens[token])
        assert ring[len(tokens) :].isnan().all()


MIXES = {
    "Mixed": ["BF16-BF16", "INT8-INT4", "INT8-INT4", "BF16-BF16"],
    "each to itself": ["INT4-BF16", "INT8-INT8", "BF16-INT4", "INT4-INT4"],
}


@pytest.mark.parametrize("windows", [(None,), (None, 40), (20, None, 64, None)], ids=str)
@pytest.mark.parametrize("mix", MIXES)
def test_layers_of_several_formats_in_one_pool(mix: str, windows: tuple[int | None, ...]) -> None:
    """Arenas are as wide as the widest layer of their slot; layers without a 4-bit side leave recent blocks alone."""
    cache = Cache(*(FORMATS[name] for name in MIXES[mix]), windows=windows, bases=True, num_blocks=300)
    check(cache, [[40, 1], [1, 20], [1, 1], [33, 1], [1, 1]])


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    formats=st.lists(st.sampled_from(sorted(FORMATS)), min_size=2, max_size=2),
    windows=st.sampled_from([(None,), (None, 24), (50, 7)]),
    head_dim=st.sampled_from(SERVED_HEAD_DIMS),
    kv_heads=st.integers(1, 2),
    group=st.integers(1, 9),
    block_size=st.sampled_from(SERVED_BLOCK_SIZES),
    bases=st.booleans(),
    steps=st.lists(st.lists(st.integers(0, 70), min_size=2, max_size=2).filter(any), min_size=1, max_size=5),
)
def test_shapes_that_nobody_thought_of(formats: list[str], steps: list[list[int]], **shape: object) -> None:
    check(Cache(*(FORMATS[name] for name in formats), num_blocks=160, **shape), steps)  # type: ignore[arg-type]


def test_threads_change_nothing() -> None:
    """Also not what is left in the pool: a chunk's last tokens take their places when all of it has attended."""
    cache = Cache(FORMATS["INT4-INT4"], bases=True, num_blocks=200)
    held = cache.sequence()
    cache.step([(held, 300)])
    step = cache.attention.plan([cache.span(held, 400)])
    query, own = cache.vectors(400, 4), cache.vectors(400, 2)
    before, threads = cache.pool.storage.clone(), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone, left = step.run(0, query, own, own), cache.pool.storage.clone()
        torch.set_num_threads(5)
        for _ in range(20):
            cache.pool.storage.copy_(before)
            assert torch.equal(step.run(0, query, own, own), alone)
            assert torch.equal(cache.pool.storage, left)
    finally:
        torch.set_num_threads(threads)


def test_refuses_bases_that_do_not_fit() -> None:
    cache = Cache(FORMATS["INT8-INT8"], bases=True)
    [basis] = cache.bases.values()
    with pytest.raises(
        ValueError, match=r"layers \[0\] have a centre, .* soft cap of 30.0 .* fit them with centred=False"
    ):
        CpuAttention(cache.pool, scale=1.0, soft_cap=30.0, bases=cache.bases)
    for part, wrong in (
        ("of_key", basis.of_key.double()),
        ("of_query", basis.of_query.mT),
        ("centre", basis.centre[:1]),
    ):
        step = CpuAttention(cache.pool, scale=1.0, bases={0: replace(basis, **{part: wrong})}).plan(
            [cache.span(cache.sequence(), 1)]
        )
        own = cache.vectors(1, 2)
        with pytest.raises(ValueError, match=rf"basis' {part} needs to be contiguous float32"):
            step.run(0, cache.vectors(1, 4), own, own)
