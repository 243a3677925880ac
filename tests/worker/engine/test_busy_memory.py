"""How long a GPU's memory is waited for, and what is said of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from kvtide_sizing.errors import DoesNotFit
from kvtide_worker.engine.busy_memory import DeviceMemory, GPUMemoryBusy, Holder, wait_for_memory

GIB = 1 << 30


@dataclass
class Device:
    """A device whose free memory is what each look in turn finds, the last one for ever. Time passes in sleeps."""

    free: Sequence[int]
    total: int = 40 * GIB
    holders: tuple[Holder, ...] = ()
    now: float = 0.0
    looks: int = 0
    told: list[str] = field(default_factory=list)

    def read(self) -> DeviceMemory:
        free = self.free[min(self.looks, len(self.free) - 1)]
        self.looks += 1
        return DeviceMemory(free, self.total, self.holders)

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds

    def wait(self, needed: int, timeout_s: float = 120.0) -> None:
        wait_for_memory(
            needed,
            self.read,
            timeout_s=timeout_s,
            progress=self.told.append,
            clock=lambda: self.now,
            sleep=self.sleep,
        )


@pytest.mark.parametrize("free", [30 * GIB, 31 * GIB])
def test_memory_that_is_free_is_not_waited_for(free: int) -> None:
    device = Device([free])
    device.wait(30 * GIB, timeout_s=0)
    assert (device.now, device.told) == (0, [])


def test_it_goes_on_when_a_predecessor_lets_go() -> None:
    device = Device([2 * GIB, 2 * GIB, 39 * GIB])
    device.wait(30 * GIB)
    assert device.now == 10
    assert device.told == [
        "waiting up to 120 s more for GPU memory: 2.00 GiB of 30.0 GiB are free",
        "waiting up to 115 s more for GPU memory: 2.00 GiB of 30.0 GiB are free",
    ]


@pytest.mark.parametrize("timeout_s", [0.0, 3.0, 120.0])
def test_it_fails_after_its_time_and_not_later(timeout_s: float) -> None:
    holders = (Holder(4711, "python3", 37 * GIB), Holder(12, None, None))
    device = Device([2 * GIB], holders=holders)
    with pytest.raises(GPUMemoryBusy) as caught:
        device.wait(30 * GIB, timeout_s)
    assert device.now == timeout_s
    # What the operator reads the reason from.
    assert str(caught.value).startswith("GPUMemoryBusy: ")
    assert f"needs 30.0 GiB (32212254720 bytes) of the GPU, but after {timeout_s:g} s" in str(caught.value)
    assert "2.00 GiB (2147483648 bytes) are free" in str(caught.value)
    assert "NVML lists the processes 4711 python3 with 37.0 GiB, 12;" in str(caught.value)


def test_memory_that_comes_at_the_last_moment_is_taken() -> None:
    device = Device([0, 40 * GIB])
    device.wait(30 * GIB, timeout_s=3)
    assert device.now == 3


def test_who_is_in_another_container_may_not_be_seen() -> None:
    with pytest.raises(GPUMemoryBusy, match="NVML lists no process on it"):
        Device([0]).wait(1, timeout_s=0)


def test_a_device_that_is_too_small_is_not_waited_for() -> None:
    device = Device([23 * GIB], total=24 * GIB)
    with pytest.raises(DoesNotFit, match=r"has 24\.0 GiB") as caught:
        device.wait(30 * GIB)
    assert (device.now, caught.value.needed_bytes, caught.value.device_bytes) == (0, 30 * GIB, 24 * GIB)
