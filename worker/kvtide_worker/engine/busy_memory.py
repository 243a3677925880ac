"""Waits for a GPU's memory that somebody else still holds, such as the worker that this one comes after."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from kvtide_sizing.errors import DoesNotFit, SizingError
from kvtide_sizing.quantity import format_bytes

# The driver gives a process's memory back within seconds of its end.
_LOOK_AGAIN_S = 5.0


class GPUMemoryBusy(SizingError):
    """The memory that the plan needs was held by others for too long. The message begins with the reason: it is all
    that a pod's termination message carries."""

    reason: ClassVar[str] = "GPUMemoryBusy"


@dataclass(frozen=True)
class Holder:
    """A process that NVML lists on the device. name: where the driver tells; used_bytes: the same."""

    pid: int
    name: str | None
    used_bytes: int | None


@dataclass(frozen=True)
class DeviceMemory:
    """What NVML says of a device, in bytes, and of who is on it."""

    free_bytes: int
    total_bytes: int
    holders: tuple[Holder, ...] = ()


def wait_for_memory(
    needed_bytes: int,
    read: Callable[[], DeviceMemory],
    *,
    timeout_s: float,
    progress: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Return as soon as so many bytes of the device are free; progress is told what is waited for, at every look.

    Raises GPUMemoryBusy after timeout_s seconds, and DoesNotFit at once where the device has less in all.
    """
    deadline = clock() + timeout_s
    while (memory := read()).free_bytes < needed_bytes:
        if memory.total_bytes < needed_bytes:
            raise DoesNotFit(
                f"the plan needs {_exactly(needed_bytes)} of the GPU, which has {_exactly(memory.total_bytes)} in all; "
                f"plan for this device's memory",
                needed_bytes=needed_bytes,
                device_bytes=memory.total_bytes,
            )
        left = deadline - clock()
        if left <= 0:
            raise GPUMemoryBusy(
                f"{GPUMemoryBusy.reason}: the plan needs {_exactly(needed_bytes)} of the GPU, but after "
                f"{timeout_s:g} s {_exactly(memory.free_bytes)} are free; {_told(memory.holders)}; end what holds the "
                f"rest, wait longer with --gpu-memory-wait, or plan for less memory"
            )
        progress(
            f"waiting up to {left:.0f} s more for GPU memory: {format_bytes(memory.free_bytes)} of "
            f"{format_bytes(needed_bytes)} are free"
        )
        sleep(min(_LOOK_AGAIN_S, left))


def _exactly(count: int) -> str:
    return f"{format_bytes(count)} ({count} bytes)"


def _told(holders: tuple[Holder, ...]) -> str:
    if not holders:
        return "NVML lists no process on it (it does not see into other containers)"
    each = (
        f"{one.pid}{f' {one.name}' if one.name else ''}"
        f"{'' if one.used_bytes is None else f' with {format_bytes(one.used_bytes)}'}"
        for one in holders
    )
    return f"NVML lists the processes {', '.join(each)}"
