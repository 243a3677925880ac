"""Every condition of every pass, judged from what is seen and from nothing else."""

from collections.abc import Callable
from typing import Any

import pytest

from kvtide_operator.api.conditions import ConditionType, Reason
from kvtide_operator.api.resource import LLMDeployment
from kvtide_operator.api.status import Status
from kvtide_operator.autoscale.worker_state import WorkerState
from kvtide_operator.plan.intent import intent_hash
from kvtide_operator.reconcile.broken import failed_pass, unreadable_spec
from kvtide_operator.reconcile.observed import Answer, Observed, Surroundings
from kvtide_operator.reconcile.reconcile import reconcile

Json = dict[str, Any]
See = Callable[..., Observed]
Make = Callable[..., LLMDeployment]
MakeState = Callable[..., WorkerState]
MakePod = Callable[..., Json]


def condition(status: Status, kind: ConditionType) -> tuple[str, str]:
    found = next(c for c in status.conditions or [] if c.type is kind)
    return found.status, found.reason


def message(status: Status, kind: ConditionType) -> str:
    return next(c.message for c in status.conditions or [] if c.type is kind)


def unscheduled(text: str) -> list[Json]:
    return [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": text}]


def container(reason: str, **more: Any) -> list[Json]:
    return [{"image": "registry/worker:1", "ready": False, "state": {"waiting": {"reason": reason}}, **more}]


OOM = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ({"containerStatuses": container("ImagePullBackOff")}, Reason.IMAGE_PULL_ERROR),
        ({"containerStatuses": container("CrashLoopBackOff")}, Reason.CONTAINER_CRASH_LOOP_BACK_OFF),
        ({"containerStatuses": container("CrashLoopBackOff", lastState=OOM)}, Reason.CONTAINER_OOM_KILLED),
        ({"containerStatuses": container("CreateContainerConfigError")}, Reason.CONTAINER_START_ERROR),
        ({"conditions": unscheduled("1 Insufficient memory.")}, Reason.UNSCHEDULABLE),
        ({"conditions": unscheduled("1 Insufficient nvidia.com/gpu.")}, Reason.INSUFFICIENT_GPU),
    ],
)
def test_a_pod_in_trouble_degrades_and_recovers(
    make_resource: Make, make_pod: MakePod, observe: See, surroundings: Surroundings, now: float, first: list[Json],
    status: Json, reason: Reason,
) -> None:  # fmt: skip
    intent = intent_hash(make_resource())
    pod = make_pod(ready=False, intent=intent, **status)
    seen = reconcile(observe(make_resource(), first, [pod]), surroundings, now)
    assert condition(seen.status, ConditionType.DEGRADED) == ("True", reason)
    assert condition(seen.status, ConditionType.READY) == ("False", reason)
    assert ("Warning", reason) in [(event.type, event.reason) for event in seen.events]

    recovered = make_resource(status=seen.status.to_json())
    after = reconcile(observe(recovered, first, [make_pod(intent=intent)]), surroundings, now + 9)
    assert condition(after.status, ConditionType.DEGRADED) == ("False", "AsExpected")
    assert condition(after.status, ConditionType.READY) == ("True", "WorkersReady")


@pytest.mark.parametrize(
    ("states", "age_s", "status", "reason"),
    [
        ({}, 0.5, "False", "MetricsMissing"),
        ({"chat-a": {}}, 60.0, "False", "MetricsStale"),
        ({"chat-a": {}}, 0.5, "True", "WithinBounds"),
        ({"chat-a": {"live": 9_900, "queued": 90_000}}, 0.5, "True", "DemandAboveTarget"),
    ],
)
def test_scaling_active_says_whether_it_can_see(
    make_resource: Make, make_pod: MakePod, make_state: MakeState, observe: See,
    surroundings: Surroundings, now: float, first: list[Json],
    states: dict[str, Json], age_s: float, status: str, reason: str,
) -> None:  # fmt: skip
    seen = observe(
        make_resource(), first, [make_pod(intent=intent_hash(make_resource()))],
        {name: make_state(**state) for name, state in states.items()}, age_s=age_s,
    )  # fmt: skip
    actions = reconcile(seen, surroundings, now)
    assert condition(actions.status, ConditionType.SCALING_ACTIVE) == (status, reason)
    if status == "False":
        assert "chat-a" in message(actions.status, ConditionType.SCALING_ACTIVE)


@pytest.mark.parametrize(
    ("used_gib", "status", "reason"),
    [(1.0, "True", "WithinPlan"), (1.99, "False", "AbovePlan"), (None, "Unknown", "NotMeasured")],
)
def test_memory_against_the_plan(
    make_resource: Make, make_pod: MakePod, make_state: MakeState, observe: See,
    surroundings: Surroundings, now: float, first: list[Json],
    used_gib: float | None, status: str, reason: str,
) -> None:  # fmt: skip
    device = 2 * 2**30
    measured = {} if used_gib is None else {"deviceBytes": device, "freeBytes": device - int(used_gib * 2**30)}
    pod = make_pod(intent=intent_hash(make_resource()))
    seen = observe(make_resource(), first, [pod], {"chat-a": make_state(measured=measured)})
    assert condition(reconcile(seen, surroundings, now).status, ConditionType.MEMORY_WITHIN_PLAN) == (status, reason)


@pytest.mark.parametrize(
    ("pods", "progressing", "ready"),
    [
        ([], "Starting", "Starting"),
        ([("chat-a", True, "now", False)], "Stable", "WorkersReady"),
        ([("chat-a", True, "before", False)], "RollingOut", "RollingOut"),
        ([("chat-a", True, "now", False), ("chat-b", True, "now", True)], "Draining", "WorkersReady"),
        ([("chat-a", True, "now", False), ("chat-b", True, "now", False)], "Draining", "WorkersReady"),
        ([("chat-a", False, "now", False)], "Starting", "Starting"),
    ],
)
def test_progress(
    make_resource: Make, make_pod: MakePod, observe: See, surroundings: Surroundings, now: float, first: list[Json],
    pods: list[tuple[str, bool, str, bool]], progressing: str, ready: str,
) -> None:  # fmt: skip
    live = []
    for name, is_ready, intent, terminating in pods:
        pod = make_pod(name, is_ready, intent_hash(make_resource()) if intent == "now" else "another")
        if terminating:
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        live.append(pod)
    status = reconcile(observe(make_resource(), first, live), surroundings, now).status
    assert condition(status, ConditionType.PROGRESSING)[1] == progressing
    assert condition(status, ConditionType.READY)[1] == ready


SILENT = Answer(False, "no answer to a request of one token within 8 s")


@pytest.mark.parametrize(
    ("answers", "ready", "available", "degraded"),
    [
        # two ready pods, and what became of a request to each
        ([Answer(True), Answer(True)], ("True", "WorkersReady"), ("True", "WorkersReady"), "False"),
        ([Answer(True), SILENT], ("False", "ProbeFailed"), ("True", "WorkersReady"), "True"),
        ([SILENT, SILENT], ("False", "ProbeFailed"), ("False", "ProbeFailed"), "True"),
        ([Answer(True), None], ("False", "Starting"), ("True", "WorkersReady"), "False"),
        ([None, None], ("False", "Starting"), ("False", "NoReadyWorkers"), "False"),
        ([Answer(None), Answer(None)], ("True", "WorkersReady"), ("True", "WorkersReady"), "False"),
    ],
)
def test_ready_is_said_of_those_that_answer(
    make_resource: Make, make_pod: MakePod, observe: See, surroundings: Surroundings, now: float, first: list[Json],
    answers: list[Answer | None], ready: tuple[str, str], available: tuple[str, str], degraded: str,
) -> None:  # fmt: skip
    resource = make_resource(autoscaling={"mode": "Off"}, replicas=2)
    pods = [make_pod(name, intent=intent_hash(resource)) for name in ("chat-a", "chat-b")]
    given = {name: answer for name, answer in zip(("chat-a", "chat-b"), answers, strict=True) if answer is not None}
    status = reconcile(observe(resource, first, pods, answers=given), surroundings, now).status
    assert condition(status, ConditionType.READY) == ready
    assert condition(status, ConditionType.AVAILABLE) == available
    assert condition(status, ConditionType.DEGRADED)[0] == degraded
    if degraded == "True":
        assert "chat-b: no answer to a request of one token" in message(status, ConditionType.DEGRADED)


def test_a_condition_keeps_its_time_while_it_says_the_same(
    make_resource: Make, observe: See, surroundings: Surroundings, now: float, first: list[Json]
) -> None:
    before = reconcile(observe(make_resource(), first), surroundings, now).status
    later = reconcile(observe(make_resource(status=before.to_json()), first), surroundings, now + 100).status
    assert later.conditions == before.conditions


def test_a_pass_that_failed_is_told_beside_what_was_known(
    make_resource: Make, observe: See, surroundings: Surroundings, now: float
) -> None:
    before = reconcile(observe(make_resource()), surroundings, now).status
    status = failed_pass(make_resource(status=before.to_json()), RuntimeError("no route"), now)
    assert condition(status, ConditionType.DEGRADED) == ("True", "ReconcileFailed")
    assert "no route" in message(status, ConditionType.DEGRADED)
    assert condition(status, ConditionType.PLANNED) == ("True", "Fits")


def test_a_spec_that_cannot_be_read_is_no_plan(now: float) -> None:
    status = unreadable_spec(Status(), 4, ValueError("spec.device is missing"), now)
    assert condition(status, ConditionType.PLANNED) == ("False", "InvalidSpec")
    assert status.observed_generation == 4


def test_passes_that_fail_alike_say_so_once(make_resource: Make) -> None:
    status = failed_pass(make_resource(), RuntimeError("no route"), 0.0)
    for _ in range(3):
        again = failed_pass(make_resource(status=status.to_json()), RuntimeError("no route"), 60.0)
        assert again.to_json() == status.to_json()
        status = again
