"""What workers really run beside the plan: every difference is said with both sides, and none is made up."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from kvtide_operator.api.conditions import ConditionType
from kvtide_operator.api.resource import LLMDeployment
from kvtide_operator.api.status import Status
from kvtide_operator.autoscale.worker_state import WorkerState
from kvtide_operator.plan.intent import intent_hash
from kvtide_operator.reconcile.observed import Answer, Observed, Surroundings
from kvtide_operator.reconcile.reconcile import reconcile

Json = dict[str, Any]
# What the example of docs/architecture.md becomes for SmolLM2 in 2 GiB: as planned, and said so in full.
BF16 = {"precision": "BF16", "plannedPrecision": "BF16", "blockSizeTokens": 64}
ENGINE = {"kernels": "cpu-avx512bf16", "weightPrecision": "BF16", "dtype": "bfloat16"}


@pytest.fixture
def status_of(
    make_resource: Callable[..., LLMDeployment],
    make_pod: Callable[..., Json],
    make_state: Callable[..., WorkerState],
    observe: Callable[..., Observed],
    surroundings: Surroundings,
    now: float,
    first: list[Json],
) -> Callable[..., Status]:
    """The status of a pass over one worker that says this beside a state that is as planned."""

    def judge(kv: Json | None = None, engine: Json | None = None, device: str = "cpu", **seen: Any) -> Status:
        said = make_state(measured={}).model_dump(by_alias=True)
        said["kv"] |= BF16 | (kv or {})
        said |= {"engine": ENGINE | (engine or {}), "device": device}
        pod, samples = make_pod(intent=intent_hash(make_resource())), {"chat-a": WorkerState.model_validate(said)}
        return reconcile(observe(make_resource(), first, [pod], samples, **seen), surroundings, now).status

    return judge


@pytest.fixture
def degraded(status_of: Callable[..., Status]) -> Callable[..., tuple[str, str, str]]:
    """Its condition Degraded."""

    def judge(**said: Any) -> tuple[str, str, str]:
        conditions = status_of(**said).conditions or []
        found = next(c for c in conditions if c.type is ConditionType.DEGRADED)
        return found.status, found.reason, found.message

    return judge


def planned_blocks(first: list[Json]) -> int:
    data = next(child for child in first if child["kind"] == "ConfigMap")["data"]
    plan = json.loads(next(text for key, text in data.items() if key.startswith("plan-")))
    return int(plan["kv"]["numBlocks"])


def test_as_planned_nothing_is_said(degraded: Callable[..., tuple[str, str, str]], first: list[Json]) -> None:
    assert degraded(kv={"numBlocks": planned_blocks(first)})[:2] == ("False", "AsExpected")


def test_a_worker_of_an_earlier_version_is_not_judged_by_what_it_does_not_say(
    degraded: Callable[..., tuple[str, str, str]],
) -> None:
    silent = {"precision": None, "blockSizeTokens": None, "plannedPrecision": None}
    assert degraded(kv=silent, engine={"kernels": "", "weightPrecision": ""}, device="")[:2] == ("False", "AsExpected")


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"device": "cuda"}, "computes on cuda, planned for CPU"),
        ({"engine": {"kernels": "torch"}}, "attention by torch"),
        ({"engine": {"weightPrecision": "INT8"}}, "weights in INT8, planned BF16"),
        ({"kv": {"precision": "INT8"}}, "KV cache in INT8, planned BF16"),
        ({"kv": {"blockSizeTokens": 16}}, "blocks of 16 tokens, planned 64"),
        ({"kv": {"numBlocks": 7}}, "7 KV blocks, planned "),
    ],
)
def test_each_difference_is_said_with_both_sides(
    degraded: Callable[..., tuple[str, str, str]], said: Json, words: str
) -> None:
    status, reason, message = degraded(**said)
    assert (status, reason) == ("True", "NotAsPlanned")
    assert f"chat-a: {words}" in message


def test_a_fallback_is_told_in_the_workers_words_and_as_nothing_else(
    degraded: Callable[..., tuple[str, str, str]],
) -> None:
    why = "INT4 costs 0.31 nats here, more than 0.05: BF16 is served"
    status, reason, message = degraded(kv={"precision": "INT8", "fallback": why})
    assert (status, reason, message) == ("True", "PrecisionFallback", f"chat-a: {why}")


def test_the_status_shows_what_each_worker_runs(status_of: Callable[..., Status]) -> None:
    (worker,) = status_of(kv={"numBlocks": 160}, answers={"chat-a": Answer(True)}).workers or []
    assert (worker.device, worker.kernels, worker.precision) == ("cpu", "cpu-avx512bf16", "BF16")
    assert (worker.weight_precision, worker.block_size_tokens, worker.num_blocks) == ("BF16", 64, 160)
    assert worker.answers is True
