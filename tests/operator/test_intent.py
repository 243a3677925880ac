"""Which changes restart workers, and that nothing else ever does."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kvtide_operator.api.resource import LLMDeployment
from kvtide_operator.plan.intent import intent_hash
from kvtide_operator.plan.record import Basis, Planned, Record

CPU = {"kind": "CPU", "memory": "2Gi"}


@pytest.mark.parametrize(
    "change",
    [
        {"replicas": 3},
        {"autoscaling": {"mode": "Off"}},
        {"autoscaling": {"maxReplicas": 9, "scaleDownStabilizationSeconds": 5}},
        # what the schema fills in says the same as leaving it out
        {"drain": {"timeoutSeconds": 120}},
        {"kvCache": {"precision": "Auto", "maxQualityLossPercent": 1}},
        {"workload": {"profile": "Chat"}},
        {"model": {"uri": "hf://HuggingFaceTB/SmolLM2-135M-Instruct", "weightPrecision": "BF16"}},
        {"worker": {}},
    ],
)
def test_live_fields_and_defaults_restart_nothing(
    make_resource: Callable[..., LLMDeployment], change: dict[str, Any]
) -> None:
    assert intent_hash(make_resource(**change)) == intent_hash(make_resource())


@pytest.mark.parametrize(
    "change",
    [
        {"model": {"uri": "hf://HuggingFaceTB/SmolLM2-360M-Instruct"}},
        {"model": {"uri": "hf://HuggingFaceTB/SmolLM2-135M-Instruct", "weightPrecision": "INT8"}},
        {"device": {**CPU, "memory": "3Gi"}},
        {"workload": {"maxContextTokens": 1024}},
        {"kvCache": {"blockSizeTokens": 16}},
        {"drain": {"timeoutSeconds": 60}},
        {"worker": {"image": "registry/worker:2"}},
        {"worker": {"env": [{"name": "A", "value": "b"}]}},
    ],
)
def test_what_a_worker_is_made_from_restarts_it(
    make_resource: Callable[..., LLMDeployment], change: dict[str, Any]
) -> None:
    assert intent_hash(make_resource(**change)) != intent_hash(make_resource())


def test_the_hash_is_the_same_in_every_version(make_resource: Callable[..., LLMDeployment]) -> None:
    # Written down, because a change of this value restarts every worker of every user at the next upgrade.
    assert intent_hash(make_resource()) == "2efe712f1e48"
    assert intent_hash(replace(make_resource(), uid="another", generation=9)) == "2efe712f1e48"


def test_a_record_survives_its_config_map() -> None:
    record = Record({"i1": Planned({"kv": 1}, {"spec": 2})}, {"m1": {"name": "x"}})
    assert Record.from_config_map({"data": record.to_data()}) == record
    assert set(record.to_data()) == {"plan-i1.json", "template-i1.json", "shape-m1.json"}
    based = Record({"i1": Planned({}, {}, Basis("s1", {"Secret/a/": "", "Secret/b/k": "b1", "Secret/c/": None}))})
    assert Record.from_config_map({"data": based.to_data()}) == based


def test_workers_of_an_earlier_release_find_what_they_read_in_a_plan() -> None:
    """The first release read weightsFormat, and took BF16 where it was not there."""
    plan = json.loads(Record({"i1": Planned({"weightPrecision": "INT8"}, {})}).to_data()["plan-i1.json"])
    assert plan == {"weightPrecision": "INT8", "weightsFormat": "INT8"}


@pytest.mark.parametrize("data", [{}, {"plan-i1.json": "{}"}, {"plan-i1.json": "{", "template-i1.json": "[]"}])
def test_what_cannot_be_read_counts_as_absent(data: dict[str, str]) -> None:
    assert Record.from_config_map({"data": data}) == Record()


def test_plans_of_running_pods_are_kept() -> None:
    planned = Planned({}, {})
    record = Record({"old": planned, "running": planned, "new": planned})
    assert set(record.keep(["new", "running"]).planned) == {"new", "running"}
