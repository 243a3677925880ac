"""Measured memory adds up, whatever was measured."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kvtide_worker.engine.heap import give_back_heap
from kvtide_worker.engine.memory import MemoryMeter, Usage, cpu_usage
from kvtide_worker.engine.messages import MeasuredMemory
from kvtide_worker.engine.processes import family_bytes, private_bytes

MIB = 1 << 20


def measured(*readings: Usage, activations: int) -> MeasuredMemory:
    """Of a device with weights of 30 and a pool of 20; the first reading is at rest."""
    later: Iterator[Usage] = iter(readings)
    meter = MemoryMeter(lambda: next(later), weights_bytes=30, kv_pool_bytes=20)
    meter.rest({4: activations, 8: activations + 2})
    result = None
    for _ in readings[1:]:
        result = meter.measure()
    assert result is not None
    return result


@pytest.mark.parametrize(
    ("at_rest", "now", "activations", "expected"),
    [
        (Usage(57, 3, 100), Usage(57, 3, 100), 5, (5, 10, 35)),  # 7 of this process and 3 beside it
        (Usage(57, 3, 100), Usage(61, 3, 100), 5, (5, 10, 35)),  # heap that a step left is the next one's
        (Usage(57, 3, 100), Usage(65, 3, 100), 5, (5, 13, 32)),  # 10 more than activations explain
        (Usage(57, 3, 100), Usage(57, 9, 100), 5, (5, 16, 29)),  # the server grows
        (Usage(40, 0, 100), Usage(40, 0, 100), 5, (5, 0, 45)),  # less used than the tensors have: paged out
        (Usage(57, 3, 60), Usage(57, 3, 60), 5, (5, 10, -5)),  # more spoken for than there is
    ],
)
def test_parts_add_up(at_rest: Usage, now: Usage, activations: int, expected: tuple[int, int, int]) -> None:
    memory = measured(at_rest, now, activations=activations)
    assert (memory.weights_bytes, memory.kv_pool_bytes) == (30, 20)
    assert (memory.activations_bytes, memory.other_bytes, memory.free_bytes) == expected
    assert 30 + 20 + sum(expected) == memory.device_bytes == now.device


def test_the_peak_is_of_all_readings() -> None:
    readings = [Usage(57, 3, 100), Usage(70, 3, 100), Usage(57, 3, 100)]
    assert measured(*readings, activations=5).peak_bytes == 73


def test_measures_this_process() -> None:
    before = cpu_usage(planned_bytes=0)
    kept = torch.ones(96 * MIB, dtype=torch.uint8)
    assert cpu_usage(planned_bytes=0).own - before.own == pytest.approx(kept.nbytes, abs=8 * MIB)


def test_private_memory_is_read_as_the_kernel_writes_it(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "status").write_text("Name:\tx\nVmRSS:\t  900 kB\nRssAnon:\t  300 kB\nRssFile:\t  600 kB\n")
    assert private_bytes(7, proc=tmp_path) == 300 * 1024
    assert private_bytes(8, proc=tmp_path) == 0  # it is gone


def test_a_process_that_nobody_spawned_is_its_own_family() -> None:
    assert family_bytes() == pytest.approx(private_bytes(), abs=MIB)


def test_heap_goes_back_to_the_kernel() -> None:
    """Small pieces below the top of the heap stay with the process until it trims."""
    pieces = [bytearray(60_000) for _ in range(2000)]
    full = private_bytes()
    last = bytearray(60_000)
    del pieces
    give_back_heap()
    assert private_bytes() < full - 50 * MIB
    assert len(last) == 60_000
