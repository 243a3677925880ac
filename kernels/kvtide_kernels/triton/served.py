"""What the kernels serve: asked before anything is loaded, and again of every pool."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import triton

from kvtide_kernels.served import SERVED_BLOCK_SIZES, SERVED_HEAD_DIMS
from kvtide_sizing.formats import BF16, INT4, INT8, LayerFormat

SERVED_FORMATS = (BF16, INT8, INT4)

# The first NVIDIA architecture whose tensor cores multiply bfloat16, and AMD's that the kernels are compiled for.
_LEAST_CAPABILITY = (8, 0)
_SERVED_AMD = ("gfx942",)


def check_served(formats: Iterable[LayerFormat], head_dim: int, block_size: int, device: torch.device) -> None:
    """Raise ValueError, with what is served, for a layer's format, head size, block size (tokens) or device that no
    kernel serves.
    """
    sides = {side.name for stored in formats for side in (stored.key, stored.value)}
    served: list[tuple[str, object, tuple[object, ...]]] = [
        *(("format", name, tuple(one.name for one in SERVED_FORMATS)) for name in sorted(sides)),
        ("head size", head_dim, SERVED_HEAD_DIMS),
        ("block size", block_size, SERVED_BLOCK_SIZES),
    ]
    for what, asked, serves in served:
        if asked not in serves:
            raise ValueError(
                f"the Triton kernels serve no {what} {asked}; they serve {', '.join(str(one) for one in serves)}"
            )
    check_device(device)


def check_device(device: torch.device) -> None:
    """Raise ValueError for a device that no kernel is compiled for; the CPU is one where Triton interprets."""
    serves = f"NVIDIA from compute capability 8.0 on, and AMD {', '.join(_SERVED_AMD)}"
    if device.type == "cpu":
        if not triton.knobs.runtime.interpret:
            raise ValueError(f"the Triton kernels run on no CPU, but in Triton's interpreter; they serve {serves}")
        return
    if device.type != "cuda" or not torch.cuda.is_available():
        raise ValueError(f"the Triton kernels serve no device {device} here; they serve {serves}")
    if torch.version.hip:
        found = str(torch.cuda.get_device_properties(device).gcnArchName).split(":")[0]
        if found not in _SERVED_AMD:
            raise ValueError(f"the Triton kernels serve no AMD {found}; they serve {serves}")
    elif torch.cuda.get_device_capability(device) < _LEAST_CAPABILITY:
        found = ".".join(map(str, torch.cuda.get_device_capability(device)))
        raise ValueError(f"the Triton kernels serve no NVIDIA of compute capability {found}; they serve {serves}")
