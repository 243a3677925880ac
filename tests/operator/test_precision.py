"""The precision of KV as a lever: smaller while replicas are wanted that are not to be had, back when it is safe."""

from collections.abc import Callable
from typing import Any

import pytest

from kvtide_operator.api.resource import LLMDeployment
from kvtide_operator.autoscale.precision import SETTLE_S, Lever, Pressure, decide_precision
from kvtide_operator.autoscale.worker_state import WorkerState
from kvtide_operator.plan.intent import intent_hash
from kvtide_operator.reconcile.actions import Actions
from kvtide_operator.reconcile.observed import Observed, Surroundings
from kvtide_operator.reconcile.reconcile import reconcile

Json = dict[str, Any]
Stored = Callable[..., tuple[str, WorkerState]]
PRESSED = Pressure(pressed=True, calm=False, why="asks for 5, maxReplicas is 4")
CALM = Pressure(pressed=False, calm=True, why="within bounds")
BETWEEN = Pressure(pressed=False, calm=False, why="within bounds")
WINDOW_S = 300.0
QUALITY = [
    {"precision": "INT8", "kld": 0.002, "limit": 0.05, "passed": True},
    {"precision": "INT4", "kld": 0.04, "limit": 0.05, "passed": True},
]


@pytest.fixture
def stored(make_state: Callable[..., WorkerState]) -> Stored:
    """A worker that stores its KV so, with what it may become."""

    def make(
        precision: str, *reencodable: str, name: str = "a", running: int = 0, quality: list[Json] | None = None
    ) -> tuple[str, WorkerState]:
        state = make_state(running=running, live=100 * running).model_dump(by_alias=True)
        state["kv"] |= {
            "precision": precision,
            "plannedPrecision": "BF16",
            "reencodable": list(reencodable),
            "quality": QUALITY if quality is None else quality,
        }
        return name, WorkerState.model_validate(state)

    return make


def test_under_pressure_the_next_smaller_format_is_asked_for_with_what_it_costs(stored: Stored, now: float) -> None:
    decided = decide_precision([stored("BF16", "INT8", "INT4")], "BF16", PRESSED, Lever(), WINDOW_S, now)
    assert (decided.pushes, decided.lever, decided.moved) == ({"a": "INT8"}, Lever("INT8", now), True)
    assert decided.cost == (0.002, 0.05)
    assert decided.message == (
        "INT8 instead of BF16: asks for 5, maxReplicas is 4; it costs at most 0.002 nats of 0.05 allowed"
    )


def test_one_step_at_a_time_and_no_further_than_the_quality_bound_allows(stored: Stored, now: float) -> None:
    lever = Lever("INT8", now)
    following = stored("INT8", "INT4")
    soon = decide_precision([following], "BF16", PRESSED, lever, WINDOW_S, now + SETTLE_S - 1)
    assert (soon.pushes, soon.lever, soon.moved) == ({}, lever, False)
    later = decide_precision([following], "BF16", PRESSED, lever, WINDOW_S, now + SETTLE_S)
    assert (later.pushes, later.lever.asked) == ({"a": "INT4"}, "INT4")
    failed = [QUALITY[0], QUALITY[1] | {"passed": False}]
    last = decide_precision([stored("INT8", "INT4", quality=failed)], "BF16", PRESSED, lever, WINDOW_S, now + 999)
    assert (last.pushes, last.lever) == ({}, lever)


def test_only_a_format_that_every_worker_may_take(stored: Stored, now: float) -> None:
    workers = [stored("BF16", "INT8", "INT4"), stored("BF16", "INT4", name="b")]
    decided = decide_precision(workers, "BF16", PRESSED, Lever(), WINDOW_S, now)
    assert decided.pushes == {"a": "INT4", "b": "INT4"}
    none = decide_precision([*workers, stored("BF16", name="c")], "BF16", PRESSED, Lever(), WINDOW_S, now)
    assert (none.pushes, none.lever) == ({}, Lever())


def test_a_worker_that_started_again_is_told_too(stored: Stored, now: float) -> None:
    workers = [stored("INT8", "INT4"), stored("BF16", "INT8", "INT4", name="fresh")]
    decided = decide_precision(workers, "BF16", BETWEEN, Lever("INT8", now), WINDOW_S, now + 60)
    assert decided.pushes == {"fresh": "INT8"}
    # Nor does the next step begin before the last one is everywhere.
    assert decide_precision(workers, "BF16", PRESSED, Lever("INT8", now), WINDOW_S, now + 60).lever.asked == "INT8"


def test_back_only_after_a_whole_calm_window_and_only_when_idle(stored: Stored, now: float) -> None:
    busy, idle = stored("INT8", "INT4", running=2), stored("INT8", "INT4", name="idle")
    lever = Lever("INT8", now)
    first = decide_precision([busy, idle], "BF16", CALM, lever, WINDOW_S, now + 60)
    assert (first.pushes, first.lever.calm_since) == ({}, now + 60)
    broken = decide_precision([busy, idle], "BF16", BETWEEN, first.lever, WINDOW_S, now + 100)
    assert broken.lever.calm_since is None
    before = decide_precision([busy, idle], "BF16", CALM, first.lever, WINDOW_S, now + 359)
    assert before.pushes == {}
    after = decide_precision([busy, idle], "BF16", CALM, before.lever, WINDOW_S, now + 360)
    assert (after.pushes, after.lever.asked) == ({"idle": "BF16"}, "INT8")
    done = decide_precision([stored("BF16", "INT8")], "BF16", CALM, after.lever, WINDOW_S, now + 380)
    assert (done.pushes, done.lever.asked, done.moved) == ({}, None, True)


def test_what_was_asked_for_and_not_written_down_is_found_in_the_workers(stored: Stored, now: float) -> None:
    # An operator that was stopped between the push and the status: no further step at once, and no half of a fleet.
    workers = [stored("BF16", "INT8", "INT4"), stored("INT8", "INT4", name="told", running=1)]
    found = decide_precision(workers, "BF16", PRESSED, Lever(), WINDOW_S, now)
    assert (found.pushes, found.lever, found.moved) == ({"a": "INT8"}, Lever("INT8", now), False)
    assert decide_precision(workers, "BF16", CALM, Lever(), WINDOW_S, now).pushes == {}
    idle = [stored("BF16", "INT8"), stored("INT8", "INT4", name="told")]
    back = decide_precision(idle, "BF16", CALM, Lever(), WINDOW_S, now)
    assert (back.pushes, back.lever) == ({"told": "BF16"}, Lever())


def test_without_numbers_nothing_moves(now: float) -> None:
    lever = Lever("INT8", now, now)
    assert decide_precision([], "BF16", CALM, lever, WINDOW_S, now + 999).lever == lever


@pytest.fixture
def crowded(
    make_resource: Callable[..., LLMDeployment],
    make_pod: Callable[..., Json],
    stored: Stored,
    observe: Callable[..., Observed],
    surroundings: Surroundings,
    now: float,
) -> Callable[..., Actions]:
    """A pass over one worker at the most replicas there may be, with more queued than it holds."""

    def run(spec: Json, status: Json | None = None, queued: int = 90_000, precision: str = "BF16") -> Actions:
        resource = make_resource(status=status, **spec)
        children = list(reconcile(observe(resource), surroundings, now).apply)
        _, state = stored(precision, "INT8", "INT4", running=2)
        said = state.model_dump(by_alias=True)
        said["requests"] |= {"waiting": 9, "queuedPromptTokens": queued}
        pod = make_pod(intent=intent_hash(resource))
        seen = observe(resource, children, [pod], {"chat-a": WorkerState.model_validate(said)})
        return reconcile(seen, surroundings, now)

    return run


AT_MOST = {"autoscaling": {"maxReplicas": 1}}


def test_it_is_pushed_remembered_and_told(crowded: Callable[..., Actions]) -> None:
    actions = crowded(AT_MOST)
    (push,) = actions.precisions
    assert (push.pod, push.ip, push.precision) == ("chat-a", "10.0.0.1", "INT8")
    status = actions.status.kv_precision
    assert status is not None
    assert (status.asked, status.reason, status.kld, status.kld_limit) == ("INT8", "KVReencoded", 0.002, 0.05)
    assert "maxReplicas" in status.message
    assert ("Normal", "KVReencoded") in [(event.type, event.reason) for event in actions.events]
    again = crowded(AT_MOST, status=actions.status.to_json(), precision="INT8")
    assert again.precisions == ()
    assert again.status.kv_precision is not None
    assert again.status.kv_precision.asked == "INT8"
    assert again.status.kv is not None
    assert again.status.kv.precision_in_force == "INT8"
    # What the operator itself asked for is no difference from the plan to be warned of.
    degraded = next(c for c in again.status.conditions or [] if c.type == "Degraded")
    assert degraded.status == "False", degraded.message


@pytest.mark.parametrize(
    "spec",
    [
        AT_MOST | {"kvCache": {"precision": "BF16"}},  # the user said which
        {"autoscaling": {"maxReplicas": 1, "mode": "Observe"}},
        {"autoscaling": {"mode": "Off"}},
        {"autoscaling": {"maxReplicas": 4}},  # more workers are to be had
    ],
)
def test_only_where_the_user_leaves_it_to_the_operator_and_nothing_else_helps(
    crowded: Callable[..., Actions], spec: Json
) -> None:
    actions = crowded(spec)
    assert (actions.precisions, actions.status.kv_precision) == ((), None)


def test_what_is_short_of_computing_and_not_of_memory_is_not_pressed(
    crowded: Callable[..., Actions], make_resource: Callable[..., LLMDeployment]
) -> None:
    """A worker of 10,000 tokens that was seen to serve 4,000: 5,200 ask for two, and fit into one's memory."""
    shown = {"intent": intent_hash(make_resource(**AT_MOST)), "tokens": 4_000, "seenAt": "2026-01-01T00:01:00Z"}
    actions = crowded(AT_MOST, status={"autoscaling": {"shown": shown}}, queued=5_000)
    assert actions.status.autoscaling is not None
    assert actions.status.autoscaling.reason == "AtMaxReplicas"
    assert (actions.precisions, actions.status.kv_precision) == ((), None)
