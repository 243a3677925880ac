"""The status takes every key of a plan: what the schema does not declare, the API server drops and says nothing."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvtide_operator.api.plan import Plan
from kvtide_sizing.devices.device import device_named
from kvtide_sizing.models.catalog import builtin, names
from kvtide_sizing.plan import Policy, Workload, plan

Json = dict[str, Any]
CRD = Path(__file__).parents[2] / "crds" / "llmdeployments.yaml"
JSON_TYPES = {"string": str, "integer": int, "boolean": bool, "number": float}
# A plan as 0.1.0 wrote it: its workers may run for as long as they like.
OLD: Json = {
    "model": "smollm2-135m",
    "device": "cpu",
    "kv": {"precision": "BF16", "blockSizeTokens": 64, "bytesPerToken": 23040, "bytesPerBlock": 1474560}
    | {"numBlocks": 10, "capacityTokens": 640, "poolBytes": 14745600},
    "memory": {"deviceBytes": 7, "weightsBytes": 1, "activationsBytes": 1, "overheadBytes": 1}
    | {"reserveBytes": 1, "kvPoolBytes": 3},
    "attention": {"queryHeads": 9, "kvHeads": 3},
    "maxContextTokens": 640,
    "maxConcurrency": 1,
    "batchLimit": 1,
    "reasons": ["a"],
    "alternatives": [{"choice": "blockSizeTokens 16", "capacityTokens": 1, "maxConcurrency": 1, "batchLimit": 1}],
    "warnings": [],
}


@cache
def plan_schema() -> Json:
    root = yaml.safe_load(CRD.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema: Json = root["properties"]["status"]["properties"]["plan"]
    return schema


def pruned(value: Any, schema: Json, path: str = "plan") -> Iterator[str]:
    """Where the API server would drop a key or refuse a value."""
    if schema["type"] == "object":
        if not isinstance(value, dict):
            yield f"{path}: {value!r} is no object"
            return
        yield from (f"{path}.{key} is missing" for key in set(schema.get("required", ())) - set(value))
        for key, child in value.items():
            if key in schema["properties"]:
                yield from pruned(child, schema["properties"][key], f"{path}.{key}")
            else:
                yield f"{path}.{key} is not declared"
    elif schema["type"] == "array":
        for index, child in enumerate(value):
            yield from pruned(child, schema["items"], f"{path}[{index}]")
    elif type(value) is not JSON_TYPES[schema["type"]]:
        yield f"{path}: {value!r} is no {schema['type']}"


@pytest.mark.parametrize("model", names())
@pytest.mark.parametrize("precision", ["Auto", "Mixed"])
def test_every_key_of_a_plan_is_kept(model: str, precision: str) -> None:
    made = plan(builtin(model), device_named("big:4Ti"), Workload(), Policy(precision=precision)).to_json()
    assert list(pruned(made, plan_schema())) == []
    assert Plan.model_validate(made).to_json() == made


def test_a_plan_for_several_devices_with_measured_overhead_too() -> None:
    device = replace(device_named("h100-80gb"), count=2, measured_overhead_bytes=2**30)
    made = plan(builtin("llama-3.1-8b"), device, Workload(target_concurrency=9), Policy()).to_json()
    assert list(pruned(made, plan_schema())) == []
    assert (made["deviceCount"], made["overheadMeasured"]) == (2, True)


def test_the_walk_sees_what_is_not_declared() -> None:
    made = plan(builtin("smollm2-135m"), device_named("cpu:2Gi"), Workload(), Policy()).to_json()
    made["kv"]["novel"] = 1
    made["alternatives"][0]["served"] = "yes"
    del made["memory"]["weightsBytes"]
    assert sorted(pruned(made, plan_schema())) == [
        "plan.alternatives[0].served: 'yes' is no boolean",
        "plan.kv.novel is not declared",
        "plan.memory.weightsBytes is missing",
    ]


def test_a_plan_of_an_earlier_version_is_still_shown() -> None:
    assert list(pruned(OLD, plan_schema())) == []
    assert Plan.model_validate(OLD).to_json() == OLD
    # How matrices are held had another name, before it was the spec's.
    assert Plan.model_validate({**OLD, "weightsFormat": "INT8"}).to_json() == {**OLD, "weightPrecision": "INT8"}
