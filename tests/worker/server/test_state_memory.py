"""`/v1/state` and `/metrics` tell the same memory, and both of its accounts add up to the device."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import msgspec
import pytest

from kvtide_sizing.devices.device import device_named
from kvtide_sizing.models import catalog
from kvtide_sizing.plan import Plan, Policy, Workload, plan
from kvtide_worker.engine.messages import EngineState, MeasuredMemory
from kvtide_worker.server.metrics import EngineCollector
from kvtide_worker.server.state_report import state_report

MIB = 1 << 20
DEVICE = 1280 * MIB
MEASURED = MeasuredMemory(
    weights_bytes=257 * MIB,
    kv_pool_bytes=418 * MIB,
    activations_bytes=9 * MIB,
    other_bytes=438 * MIB,
    free_bytes=158 * MIB,
    device_bytes=DEVICE,
    peak_bytes=1120 * MIB,
)


SERVER: dict[str, Any] = {
    "version": "0",
    "model_name": "m",
    "device": "cpu",
    "ready": True,
    "draining": False,
    "started_at": 0.0,
    "limits": {},
}


@pytest.fixture(scope="module")
def planned() -> Plan:
    workload, policy = Workload(max_context_tokens=2048), Policy(served_only=True)
    return plan(catalog.builtin("smollm2-135m"), device_named("cpu:1280Mi"), workload, policy)


def state(memory: MeasuredMemory) -> EngineState:
    numbers = {field.name: 1 for field in msgspec.structs.fields(EngineState)}
    return EngineState(**{**numbers, "memory": memory})


def test_state(planned: Plan) -> None:
    memory = state_report(state(MEASURED), planned, **SERVER)["memory"]
    assert sum(memory["predicted"].values()) == DEVICE
    measured = memory["measured"]
    parts = ("weightsBytes", "kvPoolBytes", "activationsBytes", "otherBytes", "freeBytes")
    assert sum(measured[part] for part in parts) == measured["deviceBytes"] == DEVICE
    assert measured["peakBytes"] == 1120 * MIB


@pytest.mark.parametrize("free", [158, -20])
def test_metrics(planned: Plan, free: int) -> None:
    """More spoken for than there is shows as negative free memory: the sum stays the device's."""
    other = (438 + 158 - free) * MIB
    memory = msgspec.structs.replace(MEASURED, other_bytes=other, free_bytes=free * MIB)
    collector = EngineCollector("m", planned, lambda: state(memory))
    sums: defaultdict[str, float] = defaultdict(float)
    components: defaultdict[str, set[str]] = defaultdict(set)
    for family in collector.collect():
        for sample in family.samples:
            if sample.name == "kvtide_memory_bytes":
                sums[sample.labels["source"]] += sample.value
                components[sample.labels["source"]].add(sample.labels["component"])
    assert sums == {"predicted": DEVICE, "measured": DEVICE}
    assert components["predicted"] == components["measured"] == {"weights", "kv_pool", "activations", "other", "free"}


def test_capacity_is_the_plans_whatever_the_tables() -> None:
    windowed = plan(
        catalog.builtin("gemma-3-270m"),
        device_named("cpu:3GiB"),
        Workload(max_context_tokens=4096),
        Policy(served_only=True),
    )
    assert windowed.kv.block_tables == 6  # 3 full layers of 18, in cuts of three
    now = msgspec.structs.replace(
        state(MEASURED),
        num_blocks=windowed.kv.num_blocks * windowed.kv.block_tables,
        block_tables=windowed.kv.block_tables,
        block_size_tokens=windowed.kv.block_size_tokens,
    )
    kv = state_report(now, windowed, **SERVER)["kv"]
    assert kv["capacityTokens"] == windowed.kv.capacity_tokens
