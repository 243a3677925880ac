"""A step's peak by hand, and what holds for every model. The worker's tests hold it against the allocator."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtide_sizing.devices.device import DeviceKind
from kvtide_sizing.formats import Precision, layer_formats
from kvtide_sizing.memory import activations
from kvtide_sizing.memory.activations import step_bytes
from kvtide_sizing.memory.kv import KvLayout, kv_layout
from kvtide_sizing.models import catalog
from kvtide_sizing.shape import ModelShape

KIB = 1024


def layout_of(shape: ModelShape, precision: Precision = Precision.BF16) -> KvLayout:
    return kv_layout(shape, layer_formats(shape, precision), 64, step_tokens=512)


def peak(
    model: str,
    kind: DeviceKind = DeviceKind.CPU,
    precision: Precision = Precision.BF16,
    *,
    context: int,
    batch: int,
    **more: bool | int,
) -> int:
    shape = catalog.builtin(model)
    layout = layout_of(shape, precision)
    return step_bytes(shape, kind, layout, context_tokens=context, batch=batch, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "context", "batch", "expected_bytes"),
    [
        # 64 rows of bfloat16 logits; of one float32, probabilities, their order as float32 and int64, sums, a mask
        ("gemma-3-270m", 2048, 64, 262144 * (64 * 2 + 4 + 4 + 4 + 8 + 4 + 1)),
        # MLP: gate, up and their product; what it is normalised from and attention's result; the stream; ids; cosines
        # and sines
        ("smollm2-135m", 1024, 1, 512 * 1536 * 3 * 2 + 512 * 576 * 3 * 2 + 512 * 2 * 8 + 2 * 512 * 64 * 2),
        # 31 decodes of 4096 tokens in 8 pieces each, which leave 9 heads' float32 result, maximum and sum, with as much
        # for the queries; 32 tables of 64 ids of 4 bytes
        ("smollm2-135m", 4096, 32,
         512 * 1536 * 3 * 2 + 512 * 576 * 3 * 2 + 512 * 2 * 8 + 2 * 512 * 64 * 2 + 31 * 9 * 9 * 66 * 4 + 32 * 64 * 4),
    ],
)  # fmt: skip
def test_by_hand(model: str, context: int, batch: int, expected_bytes: int) -> None:
    # Each piece of work is eight int64, each sequence's share of the step seven; 13 chunks may have a part too.
    assert expected_bytes <= peak(model, context=context, batch=batch) <= expected_bytes + (48 + batch) * KIB


def test_plain_torch_has_the_gate_activated_beside_it() -> None:
    """Gate, up, the gate's activation and their product; the stream; ids; cosines and sines."""
    expected = 512 * 1536 * 4 * 2 + 512 * 576 * 2 + 512 * 2 * 8 + 2 * 512 * 64 * 2
    assert expected <= peak("smollm2-135m", context=1024, batch=1, layer_kernels=False) <= expected + 49 * KIB


def test_heads_of_their_own_are_normalised_in_float32() -> None:
    """By plain torch: 32 heads of queries, keys and values, and of queries and keys a float32 copy and its square."""
    expected = 512 * 4096 * (3 * 2 + 2 * 2 * 4) + 512 * 4096 * 2 + 512 * 2 * 8 + 2 * 512 * 128 * 2
    # The MLP takes less: 4 · 4096 elements of 2 bytes.
    narrow = replace(catalog.builtin("llama-2-7b"), intermediate_size=4096)
    taken = step_bytes(narrow, DeviceKind.CPU, layout_of(narrow), context_tokens=1024, batch=1, layer_kernels=False)
    assert expected <= taken <= expected + 64 * KIB


@pytest.mark.parametrize("kind", list(DeviceKind))
def test_a_long_context_takes_little_more_than_its_block_ids(kind: DeviceKind) -> None:
    """Blocks are read where they lie: 131,072 tokens have 2048 blocks, of 4 bytes each, and 64 pieces of 2048 tokens,
    of which each has 32 · 130 numbers."""
    short, long = (peak("llama-3.1-8b", kind, context=context, batch=1) for context in (1024, 131_072))
    assert 0 <= long - short <= 2048 * 4 + 64 * 32 * 130 * 4 + 32 * KIB


def test_recent_tokens_have_block_ids_too() -> None:
    """2 more in each of 64 sequences' tables; of INT8 none."""
    bf16, int8, int4 = (
        peak("smollm2-135m", precision=precision, context=2048, batch=64)
        for precision in (Precision.BF16, Precision.INT8, Precision.INT4)
    )
    assert (int8 - bf16, int4 - bf16) == (0, 64 * 2 * 4)


def test_a_gpu_turns_queries_for_key_bases_in_float32() -> None:
    """32 heads of queries three times: as numbers, as a product's operand, turned; 8 of keys. What heads would take to
    be normalised, a float32 copy and its square, is less."""
    narrow = replace(catalog.builtin("llama-3.1-8b"), intermediate_size=4096, vocab_size=32_000)
    plain, turned = (
        step_bytes(narrow, DeviceKind.GPU, layout_of(narrow), context_tokens=4096, batch=1, key_bases=on)
        for on in (False, True)
    )
    assert turned - plain == 512 * 128 * (32 * 3 * 4 + (32 + 8) * 2 - (32 + 8) * 2 * 4)


def test_a_gpu_draws_from_eight_rows_at_once() -> None:
    """Of each entry of a large vocabulary: two rows of logits, and eight times logits, probabilities, sorted ones and
    their places, sums, which are kept, and once more what is sorted."""
    smaller, larger = (
        replace(catalog.builtin("llama-3.1-8b"), vocab_size=vocab_size) for vocab_size in (500_000, 600_000)
    )
    sizes = [
        step_bytes(shape, DeviceKind.GPU, layout_of(shape), context_tokens=512, batch=1) for shape in (smaller, larger)
    ]
    assert sizes[1] - sizes[0] == 100_000 * (2 * 2 + 8 * (4 + 4 + 4 + 8 + 4 + 1 + 4 + 8))


@pytest.mark.parametrize(
    ("window", "context", "pieces"),
    [
        (None, 512, 1), (None, 513, 2), (None, 4096, 8),
        (None, 4097, 8),  # itself three of 2048, but a shorter sequence has more
        (None, 32_768, 16), (512, 512, 1),
        (512, 4096, 2),  # a window lies across two of 512 where it does not begin with one
        (4096, 131_072, 9),
    ],
)  # fmt: skip
def test_what_a_decode_is_cut_into(window: int | None, context: int, pieces: int) -> None:
    assert activations._pieces(window, context) == pieces


def test_without_bfloat16_units_results_are_made_in_float32_first() -> None:
    with_units, without = (
        peak("gemma-3-270m", context=2048, batch=64, layer_kernels=False, bf16_units=units) for units in (True, False)
    )
    extra = without - with_units
    assert extra > 64 * 262144 * 4 - 262144 * (4 + 4 + 4 + 8 + 4 + 1) - 16 * KIB


@given(
    model=st.sampled_from(catalog.names()),
    kind=st.sampled_from(DeviceKind),
    context=st.integers(1, 9000),
    batch=st.integers(1, 128),
)
def test_more_never_takes_less(model: str, kind: DeviceKind, context: int, batch: int) -> None:
    """Every built-in model, latents and mixtures among them."""
    least = peak(model, kind, context=context, batch=batch)
    assert peak(model, kind, context=context + 64, batch=batch) >= least
    assert peak(model, kind, context=context, batch=batch + 1) >= least
    assert least > min(512, batch * context) * catalog.builtin(model).hidden_size * 2
