"""How much memory tensors take at most while something runs."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch
from torch.autograd.profiler import profile


class AllocationPeak:
    """A context manager: `peak_bytes` is what tensors took at most while inside, beyond what there was at its start.

    It sees temporaries within an operation too. On the CPU these are the allocator's own events, as torch's profiler
    records them (of the calling thread; operations allocate there before they share their work out); what libraries
    take past torch's allocator, such as oneDNN's copies, is not among them. On a GPU it is the allocator's statistics.
    """

    peak_bytes: int

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before_bytes = 0
        self._profile: Any = None

    def __enter__(self) -> AllocationPeak:
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            self._before_bytes = torch.cuda.memory_allocated(self._device)
        else:
            # Not torch.profiler: importing it takes seconds and 80 MiB.
            self._profile = profile(use_device=None, profile_memory=True)
            self._profile.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            self.peak_bytes = torch.cuda.max_memory_allocated(self._device) - self._before_bytes
            return
        self._profile.__exit__(kind, error, trace)
        self.peak_bytes = _highest(self._profile.kineto_results.events())


def _highest(events: list[Any]) -> int:
    """The highest running sum of what the allocator gave (positive) and took back (negative), in order of time."""
    total = highest = 0
    for event in sorted((event for event in events if event.name() == "[memory]"), key=lambda event: event.start_ns()):
        total += event.nbytes()
        highest = max(highest, total)
    return highest
