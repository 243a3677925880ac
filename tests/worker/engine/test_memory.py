"""Measured memory adds up, whatever was measured."""

from __future__ import annotations

import pytest
import torch

from kvtide_worker.engine.memory import MemoryMeter, account


def parts(*, device: int, used: int, activations: int) -> tuple[int, int, int, int]:
    measured = account(
        device_bytes=device, used_bytes=used, weights_bytes=30, kv_pool_bytes=20, activations_bytes=activations
    )
    assert (measured.weights_bytes, measured.kv_pool_bytes) == (30, 20)
    return measured.activations_bytes, measured.other_bytes, measured.free_bytes, measured.device_bytes


@pytest.mark.parametrize(
    ("device", "used", "activations", "expected"),
    [
        (100, 70, 5, (5, 15, 30, 100)),
        (100, 70, 50, (20, 0, 30, 100)),  # an estimate beyond what is used is cut to it
        (100, 70, -5, (0, 20, 30, 100)),
        (100, 40, 5, (0, 0, 50, 100)),  # less used than the tensors have: what is left is free
    ],
)
def test_parts_add_up(device: int, used: int, activations: int, expected: tuple[int, int, int, int]) -> None:
    assert parts(device=device, used=used, activations=activations) == expected
    assert 30 + 20 + sum(expected[:3]) == device


def test_measures_this_process() -> None:
    """A tensor that is claimed is not counted again, one that is not claimed shows up as activations."""
    meter = MemoryMeter(torch.device("cpu"))
    claimed, unclaimed = torch.ones(64 << 20, dtype=torch.uint8), torch.ones(96 << 20, dtype=torch.uint8)
    measured = meter.measure(weights_bytes=claimed.nbytes, kv_pool_bytes=0)
    assert measured.activations_bytes == pytest.approx(unclaimed.nbytes, abs=8 << 20)
    assert measured.free_bytes > 0
