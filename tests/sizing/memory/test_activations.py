"""A step's peak by hand, and what holds for every model. The worker's tests hold it against the allocator."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtide_sizing.devices.device import DeviceKind
from kvtide_sizing.formats import Precision
from kvtide_sizing.memory.activations import step_bytes
from kvtide_sizing.memory.kv import kv_layout
from kvtide_sizing.models import catalog
from kvtide_sizing.shape import ModelShape

KIB = 1024


def peak(model: str, kind: DeviceKind = DeviceKind.CPU, *, context: int, batch: int, **more: bool | int) -> int:
    shape = catalog.builtin(model)
    layout = kv_layout(shape, Precision.BF16, 64, step_tokens=512)
    return step_bytes(shape, kind, layout, context_tokens=context, batch=batch, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "context", "batch", "expected_bytes"),
    [
        # 64 rows of bfloat16 logits; of one row probabilities, their order as float32 and int64, sums, a mask
        ("gemma-3-270m", 2048, 64, 262144 * (64 * 2 + 4 + 4 + 8 + 4 + 1)),
        # MLP: gate, up, gate's activation and product; the stream; ids; cosines and sines; a mask of 512 by 1024; where
        # 512 tokens and 16 blocks of 3 KV heads lie
        ("smollm2-135m", 1024, 1,
         512 * 1536 * 4 * 2 + 512 * 576 * 2 + 512 * 2 * 8 + 2 * 512 * 64 * 2 + 512 * 1024 * 2 + (512 + 16) * 3 * 8),
    ],
)  # fmt: skip
def test_by_hand(model: str, context: int, batch: int, expected_bytes: int) -> None:
    assert expected_bytes <= peak(model, context=context, batch=batch) <= expected_bytes + 16 * KIB


def test_a_gpu_copies_no_blocks_and_keeps_no_mask() -> None:
    """At 32768 tokens the CPU has a mask of 512 rows and a copy of one layer's keys and values more."""
    cpu, gpu = (peak("llama-3.1-8b", kind, context=32768, batch=1) for kind in (DeviceKind.CPU, DeviceKind.GPU))
    assert cpu - gpu > 512 * 32768 * 2 + 2 * 32768 * 8 * 128 * 2 - 512 * 14336 * 4 * 2


def test_a_window_bounds_what_is_copied_and_masked() -> None:
    """512 new tokens in a window of 4096 see 4096 - 1 + 512 tokens, which lie in 73 blocks of 64 at most."""
    shape = catalog.builtin("llama-3.1-8b")
    windowed = replace(shape, layers=tuple(replace(layer, window=4096) for layer in shape.layers))

    def taken(of: ModelShape, context: int) -> int:
        layout = kv_layout(of, Precision.BF16, 64, step_tokens=512)
        return step_bytes(of, DeviceKind.CPU, layout, context_tokens=context, batch=1)

    assert taken(shape, 4095 + 512) <= taken(windowed, 131072) <= taken(shape, 73 * 64) < taken(shape, 131072) // 4


def test_without_bfloat16_units_results_are_made_in_float32_first() -> None:
    extra = peak("gemma-3-270m", context=2048, batch=64, bf16_units=False) - peak(
        "gemma-3-270m", context=2048, batch=64
    )
    assert extra > 64 * 262144 * 4 - 262144 * (4 + 4 + 8 + 4 + 1) - 16 * KIB


@given(
    model=st.sampled_from(catalog.names()),
    kind=st.sampled_from(DeviceKind),
    context=st.integers(1, 9000),
    batch=st.integers(1, 128),
)
def test_more_never_takes_less(model: str, kind: DeviceKind, context: int, batch: int) -> None:
    """Every built-in model, latents and mixtures among them. A last chunk may be cut where a block begins: 1 %."""
    least = peak(model, kind, context=context, batch=batch)
    assert peak(model, kind, context=context + 64, batch=batch) >= 0.99 * least
    assert peak(model, kind, context=context, batch=batch + 1) >= 0.99 * least
    assert least > min(512, batch * context) * catalog.builtin(model).hidden_size * 2
