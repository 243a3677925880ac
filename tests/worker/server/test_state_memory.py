"""`/v1/state` and `/metrics` tell the same memory, and both of its accounts add up to the device."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import msgspec
import pytest

from kvtide_sizing.devices.device import device_named
from kvtide_sizing.models import catalog
from kvtide_sizing.plan import Plan, Policy, Workload, plan
from kvtide_worker.engine.messages import EngineState, KvFormat, KvQuality, LoadReport, MeasuredMemory
from kvtide_worker.server.latency import RecentLatency
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


REPORT = LoadReport(
    kernels="cpu-avx512",
    weight_precision="BF16",
    dtype="bfloat16",
    quality=[KvQuality("INT4", None, 0.03, False), KvQuality("K8V4", 0.002, 0.01, True)],
    fallback="INT4 is not served",
)

SERVER: dict[str, Any] = {
    "report": REPORT,
    "latency": RecentLatency(0.25, None, 60),
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
    kv = KvFormat("K8V4", [("0-29", "INT8", "INT4")], reencodable=["INT4"])
    return EngineState(**{**numbers, "memory": memory, "kv": kv})


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
    collector = EngineCollector("m", planned, REPORT, lambda: state(memory))
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


def test_what_is_served_is_told_beside_what_was_planned(planned: Plan) -> None:
    told = state_report(state(MEASURED), planned, **SERVER)
    assert {key: told["kv"][key] for key in ("precision", "plannedPrecision", "fallback", "reencodable")} == {
        "precision": "K8V4",
        "plannedPrecision": "BF16",
        "fallback": "INT4 is not served",
        "reencodable": ["INT4"],
    }
    assert told["kv"]["quality"] == [
        {"precision": "INT4", "kld": None, "limit": 0.03, "passed": False},
        {"precision": "K8V4", "kld": 0.002, "limit": 0.01, "passed": True},
    ]
    assert told["engine"] == {"kernels": "cpu-avx512", "weightPrecision": "BF16", "dtype": "bfloat16"}
    assert told["latency"] == {
        "timeToFirstTokenP95Seconds": 0.25,
        "timePerOutputTokenP95Seconds": None,
        "windowSeconds": 60,
    }


def test_the_metrics_name_the_format_in_force_and_its_quality(planned: Plan) -> None:
    collector = EngineCollector("m", planned, REPORT, lambda: state(MEASURED))
    samples = [sample for family in collector.collect() for sample in family.samples]
    [layers] = [sample.labels for sample in samples if sample.name == "kvtide_kv_format_info"]
    [config] = [sample.labels for sample in samples if sample.name == "vllm:cache_config_info"]
    assert (layers["layers"], layers["key"], layers["value"]) == ("0-29", "INT8", "INT4")
    assert config["cache_dtype"] == "k8v4"
    klds = {sample.labels["format"]: sample.value for sample in samples if sample.name == "kvtide_kv_quality_kld"}
    assert math.isnan(klds["INT4"])
    assert klds["K8V4"] == 0.002
