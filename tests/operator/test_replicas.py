"""Rows of the design's rule. One worker holds 10,000 tokens; up at 85 %, down under 70 %, window 300 s."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtide_operator.api.conditions import Reason
from kvtide_operator.autoscale.fleet import Worker
from kvtide_operator.autoscale.policy import ScalingPolicy
from kvtide_operator.autoscale.replicas import decide_replicas
from kvtide_operator.autoscale.worker_state import WorkerState

POLICY = ScalingPolicy(min_replicas=1, max_replicas=4, up=0.85, down=0.70, window_s=300.0)
NOW = 10_000.0


@pytest.mark.parametrize(
    ("ready", "current", "live", "queued", "below_since", "replicas", "reason"),
    [
        # 8500 = 0.85 · 10,000 is not above it, one token more is
        (1, 1, 8_500, 0, None, 1, Reason.WITHIN_BOUNDS),
        (1, 1, 8_501, 0, None, 2, Reason.DEMAND_ABOVE_TARGET),
        # a queue counts like what is live: 25,000 / 8500 = 2.9
        (1, 1, 9_000, 16_000, None, 3, Reason.DEMAND_ABOVE_TARGET),
        # and is bounded: 60,000 / 8500 = 7.1
        (1, 1, 9_000, 51_000, None, 4, Reason.DEMAND_ABOVE_TARGET),
        (4, 4, 9_000, 51_000, None, 4, Reason.AT_MAX_REPLICAS),
        # two are coming already: 3 replicas are enough for 25,000, nothing is added twice
        (1, 3, 9_000, 16_000, None, 3, Reason.WITHIN_BOUNDS),
        # one fewer: 14,000 = 0.70 · 10,000 · 2 is not under it, one token less is, and the window begins
        (3, 3, 14_000, 0, None, 3, Reason.WITHIN_BOUNDS),
        (3, 3, 13_999, 0, None, 3, Reason.STABILIZING),
        (3, 3, 13_999, 0, NOW - 299, 3, Reason.STABILIZING),
        (3, 3, 13_999, 0, NOW - 300, 2, Reason.DEMAND_BELOW_TARGET),
        # one at a time, even without any demand
        (4, 4, 0, 0, NOW - 900, 3, Reason.DEMAND_BELOW_TARGET),
        (1, 1, 0, 0, NOW - 900, 1, Reason.WITHIN_BOUNDS),
        # a replica that never became ready goes as well, when the demand has gone
        (1, 2, 100, 0, NOW - 300, 1, Reason.DEMAND_BELOW_TARGET),
        # bounds come first, in both directions, with or without numbers
        (0, 0, 0, 0, None, 1, Reason.BELOW_MIN_REPLICAS),
        (6, 6, 50_000, 0, None, 4, Reason.ABOVE_MAX_REPLICAS),
        (0, 2, 0, 0, NOW - 900, 2, Reason.NO_READY_WORKERS),
    ],
)
def test_a_row(
    make_state: Callable[..., WorkerState],
    ready: int,
    current: int,
    live: int,
    queued: int,
    below_since: float | None,
    replicas: int,
    reason: Reason,
) -> None:
    workers = [
        Worker(
            f"w{i}",
            make_state(live=live if i == 0 else 0, queued=queued if i == 0 else 0, capacity=10_000, utilization=0.5),
        )
        for i in range(ready)
    ]
    decision = decide_replicas(workers, current, POLICY, below_since, None, NOW)
    assert (decision.replicas, decision.reason) == (replicas, reason)


def test_the_minimum_holds_however_quiet_it_is(make_state: Callable[..., WorkerState]) -> None:
    policy = ScalingPolicy(min_replicas=2, max_replicas=4, up=0.85, down=0.70, window_s=0.0)
    decision = decide_replicas([Worker("w0", make_state()), Worker("w1", make_state())], 2, policy, None, None, NOW)
    assert (decision.replicas, decision.reason) == (2, Reason.AT_MIN_REPLICAS)


def test_the_window_begins_anew_after_a_busy_moment(make_state: Callable[..., WorkerState]) -> None:
    quiet = [Worker(f"w{i}", make_state(live=1_000)) for i in range(2)]
    busy = [Worker(f"w{i}", make_state(live=4_000)) for i in range(2)]
    since = decide_replicas(quiet, 2, POLICY, None, None, NOW).below_since
    assert since == NOW
    assert decide_replicas(quiet, 2, POLICY, since, None, NOW + 200).below_since == NOW
    assert decide_replicas(busy, 2, POLICY, since, None, NOW + 250).below_since is None
    assert decide_replicas(quiet, 2, POLICY, None, None, NOW + 310).replicas == 2


@pytest.mark.parametrize(
    ("blind", "reason"),
    [(Worker("blind", None), Reason.METRICS_MISSING), ("stale", Reason.METRICS_STALE)],
)
@pytest.mark.parametrize("live", [0, 9_900])
def test_a_worker_without_fresh_numbers_holds_the_decision_and_is_named(
    make_state: Callable[..., WorkerState], blind: Worker | str, reason: Reason, live: int
) -> None:
    unseen = Worker("stale", make_state(live=live), age_s=60.0) if isinstance(blind, str) else blind
    workers = [Worker("seen", make_state(live=live)), unseen]
    decision = decide_replicas(workers, 2, POLICY, NOW - 900, None, NOW)
    assert (decision.replicas, decision.reason, decision.held) == (2, reason, True)
    assert unseen.name in decision.message
    assert decision.below_since is None


workers_strategy = st.lists(
    st.tuples(st.booleans(), st.integers(0, 20_000), st.integers(0, 100_000), st.floats(0, 100)), max_size=6
)


def _worker(index: int, seen: bool, live: int, queued: int, age_s: float) -> Worker:
    state = WorkerState.model_validate(
        {
            "startedAt": 0,
            "sampledAt": 0,
            "kv": {"capacityTokens": 20_000, "liveTokens": live, "utilization": live / 20_000},
            "requests": {"running": 1, "waiting": 1, "queuedPromptTokens": queued, "expectedOutputTokens": 50},
            "limits": {"batchLimit": 8, "maxBatchLimit": 8},
        }
    )
    return Worker(f"w{index}", state if seen else None, age_s)


@given(
    fleet=workers_strategy,
    current=st.integers(0, 12),
    bounds=st.tuples(st.integers(1, 5), st.integers(0, 5)),
    below_since=st.none() | st.floats(0, NOW),
)
def test_never_out_of_bounds_and_never_down_on_missing_data(
    fleet: list[tuple[bool, int, int, float]],
    current: int,
    bounds: tuple[int, int],
    below_since: float | None,
) -> None:
    policy = ScalingPolicy(bounds[0], bounds[0] + bounds[1], 0.85, 0.70, 60.0)
    workers = [_worker(i, *row) for i, row in enumerate(fleet)]
    decision = decide_replicas(workers, current, policy, below_since, 256, NOW)
    assert policy.min_replicas <= decision.replicas <= policy.max_replicas
    blind = any(worker.missing or worker.stale for worker in workers) or not workers
    if blind:
        assert decision.replicas == policy.clamp(current)
    assert decision.replicas >= policy.clamp(current) - 1
