"""A GPU's memory as the driver counts it. Not yet run on a GPU."""

from __future__ import annotations

from typing import TypedDict

import torch


class GpuUsage(TypedDict):
    """Bytes that all processes take of a GPU, and all that it has."""

    own: int
    device: int


def gpu_usage(device: torch.device) -> GpuUsage:
    """The device's usage from NVML. Raises RuntimeError where the driver's library cannot be asked.

    A GPU is given to one worker, so what other processes take of it is shown as this one's: the driver does not tell
    containers apart. Memory that the driver keeps for itself counts as used.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
        # By UUID: CUDA_VISIBLE_DEVICES renumbers torch's devices, and a MIG slice has no index of its own.
        uuid = str(torch.cuda.get_device_properties(device).uuid)
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}")
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    except pynvml.NVMLError as error:
        raise RuntimeError(f"the memory of {device} cannot be read from NVML: {error}") from error
    return GpuUsage(own=int(memory.total - memory.free), device=int(memory.total))
