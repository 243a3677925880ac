"""Where the device's memory is, as measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from kvtide_worker.engine.cgroup import Cgroup
from kvtide_worker.engine.gpu_memory import gpu_usage
from kvtide_worker.engine.messages import MeasuredMemory
from kvtide_worker.engine.processes import family_bytes, private_bytes


@dataclass(frozen=True)
class Usage:
    """What is taken of a device, in bytes.

    own:     by this process; on a GPU by all, as the driver counts
    beside:  by others that share the limit: the API server, the kernel for both
    device:  all there is
    """

    own: int
    beside: int
    device: int


class MemoryMeter:
    """Splits the device's memory into parts that add up to it.

    activations are the measured peak of a step, whether one runs or not: they are spoken for. other is what nothing
    else explains: what the processes take at rest, or what they take now beyond weights, pool and activations where
    that is more. Heap that steps leave behind is reused by the next, so it is activations.
    """

    def __init__(self, read: Callable[[], Usage], *, weights_bytes: int, kv_pool_bytes: int) -> None:
        self._read = read
        self._weights_bytes = weights_bytes
        self._kv_pool_bytes = kv_pool_bytes
        self._peaks: Mapping[int, int] = {}
        self._activations_bytes = 0
        self._rest_bytes = 0
        self._peak_bytes = 0

    def rest(self, peaks: Mapping[int, int]) -> None:
        """Note what is taken now, at rest: weights and pool are there, steps were run, their heap was given back.

        peaks: of those steps, by the most sequences that they run; the smallest batch is what runs
        """
        self._peaks = peaks
        self.set_batch(min(peaks))
        self._rest_bytes = self._unexplained(self._read())

    def set_batch(self, sequences: int) -> None:
        """From now on steps run so many at most: what a step that was measured with as many or more takes."""
        if self._peaks:
            least = min((batch for batch in self._peaks if batch >= sequences), default=max(self._peaks))
            self._activations_bytes = self._peaks[least]

    def measure(self) -> MeasuredMemory:
        """The memory now."""
        usage = self._read()
        self._peak_bytes = max(self._peak_bytes, usage.own + usage.beside)
        other = max(self._rest_bytes, self._unexplained(usage) - self._activations_bytes) + usage.beside
        return MeasuredMemory(
            weights_bytes=self._weights_bytes,
            kv_pool_bytes=self._kv_pool_bytes,
            activations_bytes=self._activations_bytes,
            other_bytes=other,
            free_bytes=usage.device - self._weights_bytes - self._kv_pool_bytes - self._activations_bytes - other,
            device_bytes=usage.device,
            peak_bytes=self._peak_bytes,
        )

    def _unexplained(self, usage: Usage) -> int:
        return max(usage.own - self._weights_bytes - self._kv_pool_bytes, 0)


def usage_reader(device: torch.device, planned_bytes: int) -> Callable[[], Usage]:
    """What reads the usage of a device.

    On the CPU: private memory of this process and the server's, and with a cgroup's limit all that the cgroup cannot
    give back. planned_bytes is the device where there is no limit. On a GPU: what the driver reports.
    """
    if device.type == "cuda":
        return lambda: Usage(beside=0, **gpu_usage(device))
    return lambda: cpu_usage(planned_bytes)


def cpu_usage(planned_bytes: int) -> Usage:
    """The usage of the CPU's memory; see `usage_reader`."""
    own, limit = private_bytes(), Cgroup().memory()
    if limit is None:
        return Usage(own=own, beside=family_bytes() - own, device=planned_bytes)
    return Usage(own=own, beside=max(limit.used_bytes - own, 0), device=limit.limit_bytes)
