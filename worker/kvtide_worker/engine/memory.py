"""Where the device's memory is, as measured."""

from __future__ import annotations

from pathlib import Path

import torch

from kvtide_worker.engine.cgroup import Cgroup
from kvtide_worker.engine.messages import MeasuredMemory


def account(
    *, device_bytes: int, used_bytes: int, weights_bytes: int, kv_pool_bytes: int, activations_bytes: int
) -> MeasuredMemory:
    """Split a device's memory so that the parts add up to it.

    What is used and belongs to no part is other; where the parts claim more than is used, activations, which are
    an estimate, give way first, then the free memory.
    """
    unclaimed = max(used_bytes - weights_bytes - kv_pool_bytes, 0)
    activations = min(max(activations_bytes, 0), unclaimed)
    other = unclaimed - activations
    return MeasuredMemory(
        weights_bytes=weights_bytes,
        kv_pool_bytes=kv_pool_bytes,
        activations_bytes=activations,
        other_bytes=other,
        free_bytes=device_bytes - weights_bytes - kv_pool_bytes - activations - other,
        device_bytes=device_bytes,
    )


class MemoryMeter:
    """Measures a CPU's memory, which is the container's limit, or a GPU's.

    Made before the weights are loaded: what the process held then is not activations. On a GPU it is not yet checked.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._baseline_bytes = _anonymous_bytes()

    def measure(self, weights_bytes: int, kv_pool_bytes: int) -> MeasuredMemory:
        """The memory now; weights and pool are known by their tensors."""
        if self._device.type == "cuda":
            free_bytes, device_bytes = torch.cuda.mem_get_info(self._device)
            own_bytes = torch.cuda.memory_reserved(self._device)
        else:
            limit = Cgroup().memory()
            own_bytes = _anonymous_bytes() - self._baseline_bytes
            device_bytes = limit.limit_bytes if limit else _meminfo_bytes("MemTotal")
            free_bytes = device_bytes - limit.used_bytes if limit else _meminfo_bytes("MemAvailable")
        return account(
            device_bytes=device_bytes,
            used_bytes=device_bytes - free_bytes,
            weights_bytes=weights_bytes,
            kv_pool_bytes=kv_pool_bytes,
            activations_bytes=own_bytes - weights_bytes - kv_pool_bytes,
        )


def _anonymous_bytes() -> int:
    """This process's memory without mapped files: those pages are the kernel's to drop."""
    return _kib_field(Path("/proc/self/status"), "RssAnon")


def _meminfo_bytes(key: str) -> int:
    return _kib_field(Path("/proc/meminfo"), key)


def _kib_field(path: Path, key: str) -> int:
    line = next(line for line in path.read_text().splitlines() if line.startswith(f"{key}:"))
    return int(line.split()[1]) * 1024
