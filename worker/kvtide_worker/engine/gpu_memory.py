"""A GPU's memory as the driver counts it. Not yet run on a GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, TypedDict

import torch

from kvtide_worker.engine.busy_memory import DeviceMemory, Holder


class GpuUsage(TypedDict):
    """Bytes that all processes take of a GPU, and all that it has."""

    own: int
    device: int


def gpu_usage(device: torch.device) -> GpuUsage:
    """The device's usage from NVML. Raises RuntimeError where the driver's library cannot be asked.

    A GPU is given to one worker, so what other processes take of it is shown as this one's: the driver does not tell
    containers apart. Memory that the driver keeps for itself counts as used.
    """
    with _nvml(device) as (pynvml, handle):
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return GpuUsage(own=int(memory.total - memory.free), device=int(memory.total))


def device_memory(device: torch.device) -> DeviceMemory:
    """What is free of it, and which processes are on it, this one included. Raises RuntimeError as `gpu_usage`."""
    with _nvml(device) as (pynvml, handle):
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        holders = tuple(_holders(pynvml, handle))
    return DeviceMemory(free_bytes=int(memory.free), total_bytes=int(memory.total), holders=holders)


def _holders(pynvml: Any, handle: Any) -> Iterator[Holder]:
    # Some devices and drivers list nobody: nothing but a message hangs on it.
    with contextlib.suppress(pynvml.NVMLError):
        for one in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
            yield Holder(one.pid, _name(pynvml, one.pid), one.usedGpuMemory)


@contextlib.contextmanager
def _nvml(device: torch.device) -> Iterator[tuple[Any, Any]]:
    """The library, and the device in it."""
    import pynvml

    try:
        pynvml.nvmlInit()
        # By UUID: CUDA_VISIBLE_DEVICES renumbers torch's devices, and a MIG slice has no index of its own.
        uuid = str(torch.cuda.get_device_properties(device).uuid)
        yield pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}")
    except pynvml.NVMLError as error:
        raise RuntimeError(f"the memory of {device} cannot be read from NVML: {error}") from error


def _name(pynvml: Any, pid: int) -> str | None:
    try:
        name = pynvml.nvmlSystemGetProcessName(pid)
    except pynvml.NVMLError:  # a process of another container, or one that has just ended
        return None
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name)
