"""Numbers on their way to the device, which the host does not wait for."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def on_device(
    values: Sequence[int] | Sequence[float], device: torch.device, dtype: torch.dtype = torch.int64
) -> torch.Tensor:
    """The values as a tensor [len(values)] of the device.

    A copy from memory that is not pinned is one that torch waits for, with all that was launched before it.
    """
    host = torch.tensor(values, dtype=dtype)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host
