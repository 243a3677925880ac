"""How often a resource is looked at: rarely where nothing happens, and at once where something begins to."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kvtide_operator.autoscale.worker_state import WorkerState
from kvtide_operator.reconcile.looks import CALM_S, RESTING_S, is_news, next_look_s
from kvtide_operator.reconcile.observed import Observed, Sample, Surroundings
from kvtide_operator.reconcile.reconcile import reconcile

Json = dict[str, Any]
States = Callable[..., WorkerState]


@pytest.mark.parametrize(
    ("change", "news"),
    [
        ({}, False),
        ({"running": 1}, True),
        ({"waiting": 1}, True),
        ({"preemptions": 1}, True),
        ({"started_at": 5.0}, True),  # another process
        ({"limit": 8}, True),  # somebody else's push
        ({"capacity": 9_000}, True),
        ({"tokens": (900, 211)}, False),  # the operator's own request of one token
        ({"measured": {"otherBytes": 5}}, False),
    ],
    ids=str,
)
def test_what_a_calm_worker_says_that_is_worth_a_pass(make_state: States, change: Json, news: bool) -> None:
    assert is_news(Sample(make_state(), 0.5), Sample(make_state(**change), 0.5)) is news


def test_silence_and_numbers_that_stand_still_are_news(make_state: States) -> None:
    before = Sample(make_state(), 0.5)
    assert is_news(before, None)
    assert is_news(before, replace(before, age_s=31.0))


@pytest.fixture
def settled(
    make_resource: Callable[..., Any],
    make_pod: Callable[..., Json],
    make_state: States,
    observe: Callable[..., Observed],
    surroundings: Surroundings,
    first: list[Json],
    now: float,
) -> Callable[..., Observed]:
    """A resource after its first passes: one worker, which says what it is told to."""
    intent = next(child for child in first if child["kind"] == "Deployment")["spec"]["template"]["metadata"]["labels"]

    def make(state: Json | None = None, silent: bool = False, late: bool = False, **more: Any) -> Observed:
        pod = make_pod(intent=intent["serving.kvtide.dev/intent"])
        states = {} if silent else {"chat-a": make_state(**(state or {}))}
        seen = observe(make_resource(), [{**child} for child in first], [pod], states, **more)
        seen = replace(seen, samples={name: replace(one, late=late) for name, one in seen.samples.items()})
        status = reconcile(seen, surroundings, now).status
        return replace(seen, resource=replace(seen.resource, status=status))

    return make


@pytest.mark.parametrize(
    ("sight", "looked_at_s"),
    [
        ({}, CALM_S),
        ({"state": {"running": 1}}, 2.0),
        ({"state": {"waiting": 1, "running": 1}}, 2.0),
        ({"silent": True}, 2.0),
        ({"age_s": 31.0}, 2.0),
        ({"late": True}, 2.0),
        ({"answers": {}}, 2.0),  # its first request is on its way
    ],
    ids=str,
)
def test_only_a_resource_of_which_all_is_well_and_quiet_is_looked_at_rarely(
    settled: Callable[..., Observed], surroundings: Surroundings, now: float, sight: Json, looked_at_s: float
) -> None:
    assert reconcile(settled(**sight), surroundings, now).requeue_s == looked_at_s


def test_one_that_waits_for_something_is_looked_at_often_and_one_that_rests_hardly_ever(
    settled: Callable[..., Observed],
) -> None:
    calm = settled()
    assert next_look_s(calm, resting=False, settled=False, resync_s=2.0) == 2.0
    assert next_look_s(calm, resting=True, settled=False, resync_s=2.0) == RESTING_S
    assert next_look_s(calm, resting=False, settled=True, resync_s=60.0) == 60.0  # as the user says
