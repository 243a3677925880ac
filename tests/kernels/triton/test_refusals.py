"""What no kernel serves is refused when it is asked for, by name, with what is served."""

from __future__ import annotations

import pytest
import torch

from kvtide_kernels.triton.arena import Arena
from kvtide_kernels.triton.items import Grid, split_tokens
from kvtide_kernels.triton.served import check_device, check_served
from kvtide_sizing.formats import BF16, FP8, INT8, LayerFormat, VectorFormat


@pytest.mark.parametrize(
    ("stored", "dim", "block", "message"),
    [
        (FP8, 64, 16, "no format FP8; they serve BF16, INT8, INT4"),
        (INT8, 100, 16, "no head size 100; they serve 64, 80, 96, 112, 128, 192, 256"),
        (INT8, 64, 24, "no block size 24; they serve 16, 32, 64, 128, 256"),
    ],
)
def test_shapes(stored: VectorFormat, dim: int, block: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_served([LayerFormat(BF16, stored)], dim, block, torch.device("cpu"))


@pytest.mark.parametrize(
    ("device", "message"),
    [("cpu", "run on no CPU, but in Triton's interpreter"), ("mps", "serve no device mps here")],
)
def test_devices(device: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"{message}; they serve NVIDIA from compute capability 8.0 on"):
        check_device(torch.device(device))


@pytest.mark.parametrize(
    ("capability", "message"), [((7, 5), "no NVIDIA of compute capability 7.5"), ((8, 0), None), ((12, 0), None)]
)
def test_nvidia_before_bfloat16(
    capability: tuple[int, int], message: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    if message is None:
        check_device(torch.device("cuda"))
        return
    with pytest.raises(ValueError, match=message):
        check_device(torch.device("cuda"))


@pytest.mark.parametrize(
    ("storage", "message"),
    [
        (torch.zeros(2, 2, 1024, dtype=torch.uint8), r"\[blocks, heads, 1056\], but got torch.uint8 \[2, 2, 1024\]"),
        (torch.zeros(2, 2, 1060, dtype=torch.uint8)[..., :1056], r"are \[2120, 1060, 1\]"),
        (torch.zeros(2, 1056, 2, dtype=torch.uint8).transpose(1, 2), r"are \[2112, 1, 2\]"),
        (torch.zeros(4 * 1056 + 8, dtype=torch.uint8)[8:].view(2, 2, 1056), "from 8 behind a border on"),
    ],
)
def test_bytes_of_another_shape(storage: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Arena(INT8, 64, 16, storage)


@pytest.mark.parametrize(
    ("reaches", "heads", "expected"),
    [
        ([32768], 8, 768),  # 32768 * 8 / 396 = 662 tokens a program, in units of 256
        ([100], 8, None),  # less than one unit
        ([4096] * 128, 8, None),  # 1024 programs fill the device already
        ([131072] + [64] * 127, 8, 2816),  # they do, but one is far longer: 139200 * 8 / 396 = 2812
        ([], 8, None),
    ],
)
def test_splits(reaches: list[int], heads: int, expected: int | None) -> None:
    """An H200 has 132 processors, of three programs each."""
    assert split_tokens(reaches, Grid(heads, programs=3 * 132, prefill_tokens=16)) == expected
