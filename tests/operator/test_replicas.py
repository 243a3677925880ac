"""Rows of the design's rule. One worker holds 10,000 tokens; up at 85 %, down under 70 %, window 300 s."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from kvtide_operator.api.conditions import Reason
from kvtide_operator.autoscale.capacity import Shown
from kvtide_operator.autoscale.fleet import Fleet, Pending, Worker
from kvtide_operator.autoscale.latency import Targets
from kvtide_operator.autoscale.memory import Memory, Peak, Window
from kvtide_operator.autoscale.policy import ScalingPolicy
from kvtide_operator.autoscale.replicas import Decision, decide_replicas
from kvtide_operator.autoscale.worker_state import LatencyState, WorkerState

POLICY = ScalingPolicy(min_replicas=1, max_replicas=4, up=0.85, down=0.70, window_s=300.0)
TARGETS = ScalingPolicy(1, 4, 0.85, 0.70, 300.0, Targets(2.0, 0.1))
NOW = 10_000.0
MakeState = Callable[..., WorkerState]


def decide(fleet: Fleet, policy: ScalingPolicy = POLICY, memory: Memory | None = None, now: float = NOW) -> Decision:
    return decide_replicas(fleet, policy, memory or Memory(), None, now)


def quiet_since(began: float, peak: int = 0) -> Window:
    """A window of 300 s, whose highest demand was in its first step, and that was looked at just now."""
    return Window(began, NOW - 2, step=333, peaks=(peak, *[0] * 10))  # 10,000 s in steps of 30 s


def fleet_of(make_state: MakeState, ready: int, replicas: int, live: int = 0, queued: int = 0) -> Fleet:
    """So many ready workers, of which the first has all the load; utilization 0.5 says nothing of computing."""
    states = [make_state(live=live, queued=queued, utilization=0.5)] + [make_state(utilization=0.5)] * (ready - 1)
    return Fleet(replicas, tuple(Worker(f"w{i}", state) for i, state in enumerate(states[:ready])))


@pytest.mark.parametrize(
    ("ready", "current", "live", "queued", "window", "replicas", "reason"),
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
        (3, 3, 13_999, 0, quiet_since(NOW - 299, 0), 3, Reason.STABILIZING),
        (3, 3, 13_999, 0, quiet_since(NOW - 300, 13_999), 3, Reason.STABILIZING),  # it has just grown
        (3, 3, 1_000, 0, quiet_since(NOW - 300, 13_999), 2, Reason.DEMAND_BELOW_TARGET),
        # as few as the highest demand of the window allows: 7,000 needs 2, 6,999 needs 1
        (4, 4, 0, 0, quiet_since(NOW - 900, 7_000), 2, Reason.DEMAND_BELOW_TARGET),
        (4, 4, 0, 0, quiet_since(NOW - 900, 6_999), 1, Reason.DEMAND_BELOW_TARGET),
        # not as long as a demand of 14,000 was within it
        (3, 3, 100, 0, quiet_since(NOW - 900, 14_000), 3, Reason.STABILIZING),
        (1, 1, 0, 0, quiet_since(NOW - 900, 0), 1, Reason.WITHIN_BOUNDS),
        # a replica that never became ready goes as well, when the demand has gone
        (1, 2, 100, 0, quiet_since(NOW - 300, 6_000), 1, Reason.DEMAND_BELOW_TARGET),
        # bounds come first, in both directions, with or without numbers
        (0, 0, 0, 0, None, 1, Reason.BELOW_MIN_REPLICAS),
        (6, 6, 50_000, 0, None, 4, Reason.ABOVE_MAX_REPLICAS),
        (0, 2, 0, 0, quiet_since(NOW - 900, 0), 2, Reason.NO_READY_WORKERS),
    ],
)
def test_a_row(
    make_state: MakeState,
    ready: int,
    current: int,
    live: int,
    queued: int,
    window: Window | None,
    replicas: int,
    reason: Reason,
) -> None:
    decision = decide(fleet_of(make_state, ready, current, live, queued), memory=Memory(window))
    assert (decision.replicas, decision.reason) == (replicas, reason)


def test_the_minimum_holds_however_quiet_it_is(make_state: MakeState) -> None:
    policy = replace(POLICY, min_replicas=2, window_s=0.0)
    decision = decide(fleet_of(make_state, 2, 2), policy)
    assert (decision.replicas, decision.reason) == (2, Reason.AT_MIN_REPLICAS)


def test_the_window_begins_anew_behind_a_busy_moment(make_state: MakeState) -> None:
    """Two replicas of 10,000, which one under 7,000 does for. A look every 10 s."""
    quiet, busy = fleet_of(make_state, 2, 2, live=2_000), fleet_of(make_state, 2, 2, live=8_000)
    memory, went = Memory(), []
    for second in range(0, 1_000, 10):
        decision = decide(busy if second == 200 else quiet, memory=memory, now=NOW + second)
        memory = decision.memory
        if decision.replicas == 1:
            went.append(second)
    # the window begins anew behind the busy moment
    assert went[0] == 210 + 300


def test_the_window_slides_and_goes_on_after_a_step(make_state: MakeState) -> None:
    """Four replicas of 10,000; a demand of 13,000 at first, 2,000 later. A look every 10 s."""
    memory, replicas, moves = Memory(), 4, []
    for second in range(0, 1_000, 10):
        live = 13_000 if second < 150 else 2_000
        decision = decide(fleet_of(make_state, replicas, replicas, live=live), memory=memory, now=NOW + second)
        memory = decision.memory
        if decision.changes:
            moves.append((second, decision.replicas))
        replicas = decision.replicas
    # 13,000 / 7,000 needs 2; the last step of 30 s with it, from 10,140 to 10,170 s, is over 300 s after its end
    assert moves == [(300, 2), (470, 1)]


def test_a_fleet_that_cannot_shrink_remembers_nothing(make_state: MakeState) -> None:
    assert decide(fleet_of(make_state, 1, 1, live=5)).memory == Memory()


def test_nobody_goes_while_the_demand_grows(make_state: MakeState) -> None:
    window = Window(NOW - 900, NOW - 2, step=333, peaks=(6_000, *[100] * 10))
    assert decide(fleet_of(make_state, 3, 3, live=5_000), memory=Memory(window)).replicas == 3
    assert decide(fleet_of(make_state, 3, 3, live=50), memory=Memory(window)).replicas == 1


def test_nobody_goes_who_would_be_missed_once_the_pools_are_as_planned_again(make_state: MakeState) -> None:
    # Re-encoded, each of three holds 10,000; as planned it will be 5,000: 11,000 / 3,500 needs 4, 6,000 needs 2.
    memory = Memory(quiet_since(NOW - 900, 6_000))
    for live, replicas in ((11_000, 3), (100, 2)):
        fleet = fleet_of(make_state, 3, 3, live=live)
        assert decide_replicas(fleet, POLICY, memory, None, NOW, planned_tokens=5_000).replicas == replicas
    assert decide(fleet_of(make_state, 3, 3, live=100), memory=memory).replicas == 1


def test_a_quiet_moment_that_was_just_noted_is_not_noted_again(make_state: MakeState) -> None:
    fleet = fleet_of(make_state, 2, 2, live=2_000)
    first = decide(fleet, now=9_990.0).memory  # a step of 30 s begins there
    assert decide(fleet, memory=first, now=9_992.0).memory == first
    later = decide(fleet, memory=first, now=10_010.0).memory
    assert later.window is not None
    assert later.window.seen == 10_010.0


STUCK = Pending("stuck", 200.0, troubled=True)
NO_PLACE = Pending("stuck", 200.0, troubled=True, unschedulable=True)


@pytest.mark.parametrize(
    ("pending", "current", "live", "window", "replicas", "reason"),
    [
        # it comes: 2 replicas are enough for 16,000
        (Pending("young", 60.0, troubled=True), 2, 16_000, None, 2, Reason.WITHIN_BOUNDS),
        # it does not, where another one may: one in its place, and no more after that
        (STUCK, 2, 16_000, None, 3, Reason.DEMAND_ABOVE_TARGET),
        # no node has a place: another one would wait beside it
        (NO_PLACE, 2, 16_000, None, 2, Reason.REPLICAS_STUCK),
        # and it does not keep a real need from being met: 20,000 asks for 3
        (NO_PLACE, 2, 20_000, None, 3, Reason.DEMAND_ABOVE_TARGET),
        # falling demand cancels it; what is left is judged by the one that serves: 6,999 fits it, 7,000 does not
        (NO_PLACE, 2, 10, quiet_since(NOW - 300, 6_999), 1, Reason.DEMAND_BELOW_TARGET),
        (NO_PLACE, 2, 10, quiet_since(NOW - 300, 7_000), 2, Reason.STABILIZING),
        (NO_PLACE, 2, 7_000, quiet_since(NOW - 300, 0), 2, Reason.WITHIN_BOUNDS),
    ],
)
def test_a_replica_that_does_not_start_is_not_counted(
    make_state: MakeState,
    pending: Pending,
    current: int,
    live: int,
    window: Window | None,
    replicas: int,
    reason: Reason,
) -> None:
    fleet = replace(fleet_of(make_state, 1, current, live), pending=(pending,))
    decision = decide(fleet, memory=Memory(window))
    assert (decision.replicas, decision.reason) == (replicas, reason)


def test_at_the_maximum_what_is_stuck_is_named_and_not_the_maximum(make_state: MakeState) -> None:
    # 27,000 / 8,500 needs all four, of which one finds no node: a higher maximum would help nobody.
    fleet = replace(fleet_of(make_state, 3, 4, live=27_000), pending=(NO_PLACE,))
    assert decide(fleet).reason is Reason.REPLICAS_STUCK
    # Where another node may be sound, it is the maximum that is in the way of one in its place.
    decision = decide(replace(fleet, pending=(STUCK,)))
    assert (decision.reason, decision.message.endswith("asks for 5, maxReplicas is 4")) == (
        Reason.AT_MAX_REPLICAS,
        True,
    )


def test_replicas_that_never_start_are_not_asked_for_again_and_again(make_state: MakeState) -> None:
    policy = replace(POLICY, max_replicas=50)
    fleet = fleet_of(make_state, 1, 1, live=16_000)
    for _ in range(20):
        asked = decide(fleet, policy).replicas
        stuck = tuple(Pending(f"stuck-{i}", 200.0, troubled=True) for i in range(asked - 1))
        fleet = replace(fleet, replicas=asked, pending=stuck)
    assert fleet.replicas == 3  # 16,000 asks for 2, and one in place of the one that does not come


def slow_fleet(
    make_state: MakeState,
    first: float | None,
    token: float | None,
    ready_s: float = 600.0,
    running: int = 4,
    live: int = 2_000,
) -> Fleet:
    latency = LatencyState(time_to_first_token_p95_seconds=first, time_per_output_token_p95_seconds=token)
    slow = make_state(live=live, running=running, utilization=0.5).model_copy(update={"latency": latency})
    fast = make_state(live=live, running=4 if running else 0, utilization=0.5)
    return Fleet(2, (Worker("slow", slow, ready_s=ready_s), Worker("unsaid", fast)))


@pytest.mark.parametrize(
    ("first", "token", "ready_s", "running", "replicas", "reason"),
    [
        (2.0, 0.1, 600.0, 4, 2, Reason.STABILIZING),  # at the targets is within them
        (2.1, 0.1, 600.0, 4, 3, Reason.LATENCY_ABOVE_TARGET),
        (None, 0.11, 600.0, 4, 3, Reason.LATENCY_ABOVE_TARGET),
        (2.1, None, 89.0, 4, 2, Reason.WITHIN_BOUNDS),  # 30 s of warm-up and a window of 60 s are not over
        (2.1, None, 600.0, 0, 2, Reason.STABILIZING),  # without requests, an old latency says nothing
        (1.5, 0.05, 600.0, 4, 2, Reason.STABILIZING),
    ],
)
def test_latencies_above_their_targets_ask_for_one_more_and_keep_what_there_is(
    make_state: MakeState,
    first: float | None,
    token: float | None,
    ready_s: float,
    running: int,
    replicas: int,
    reason: Reason,
) -> None:
    decision = decide(slow_fleet(make_state, first, token, ready_s, running), TARGETS)
    assert (decision.replicas, decision.reason) == (replicas, reason)


def test_one_more_at_a_time_and_what_was_too_much_is_remembered(make_state: MakeState) -> None:
    slow = slow_fleet(make_state, 3.0, None, live=4_000)
    first = decide(slow, TARGETS, Memory(peak=Peak(5_000.0, NOW - 30)))
    assert first.replicas == 3
    # 5,000 tokens a replica within the last minute were too many: 85 % of the capacity, and so 5,000 / 0.85 = 5,882
    assert first.memory.shown == Shown(5_882, NOW)
    coming = replace(slow, replicas=3)
    assert decide(coming, TARGETS, first.memory, NOW + 60).replicas == 3
    # the same demand on three that answer in time: 10,000 = 2 · 5,000 is not sent back to two
    fine = Fleet(3, tuple(Worker(f"w{i}", make_state(live=3_334, running=4)) for i in range(3)))
    after = decide(fine, TARGETS, first.memory, NOW + 120)
    assert (after.replicas, after.reason) == (3, Reason.WITHIN_BOUNDS)


def test_latencies_of_a_load_that_has_gone_ask_for_nothing(make_state: MakeState) -> None:
    # 4,000 tokens on two replicas are less than 70 % of the 5,000 on each in the last minute
    decision = decide(slow_fleet(make_state, 3.0, None), TARGETS, Memory(peak=Peak(5_000.0, NOW - 30)))
    assert (decision.replicas, decision.reason) == (2, Reason.WITHIN_BOUNDS)


def test_one_slow_worker_of_three_is_not_the_fleet(make_state: MakeState) -> None:
    def says(first: float) -> WorkerState:
        latency = LatencyState(time_to_first_token_p95_seconds=first)
        return make_state(live=2_000, running=4, utilization=0.5).model_copy(update={"latency": latency})

    fleet = Fleet(3, tuple(Worker(f"w{i}", says(first)) for i, first in enumerate((9.0, 1.0, 1.0))))
    assert decide(fleet, TARGETS).slowness.worst == 0.5


def test_without_targets_latencies_say_nothing(make_state: MakeState) -> None:
    decision = decide(slow_fleet(make_state, 100.0, 100.0))
    assert (decision.reason, decision.memory.peak) == (Reason.STABILIZING, None)


def test_workers_that_each_have_one_request_are_not_helped_by_another(make_state: MakeState) -> None:
    latency = LatencyState(time_to_first_token_p95_seconds=9.0)
    alone = make_state(live=100, running=1).model_copy(update={"latency": latency})
    assert decide(Fleet(1, (Worker("w0", alone),)), TARGETS).replicas == 1


@pytest.mark.parametrize(
    ("blind", "reason"),
    [
        ({"state": None}, Reason.METRICS_MISSING),
        ({"age_s": 60.0}, Reason.METRICS_STALE),
        ({"wrong": "reports model b, not a"}, Reason.METRICS_MISLABELLED),
    ],
)
@pytest.mark.parametrize("live", [0, 9_900])
def test_a_worker_without_fresh_numbers_holds_the_decision_and_is_named(
    make_state: MakeState, blind: dict[str, object], reason: Reason, live: int
) -> None:
    unseen = Worker(**{"name": "unseen", "state": make_state(live=live), **blind})  # type: ignore[arg-type]
    fleet = Fleet(2, (Worker("seen", make_state(live=live)), unseen))
    decision = decide(fleet, memory=Memory(quiet_since(NOW - 900, 0), Shown(5_000, NOW)))
    assert (decision.replicas, decision.reason, decision.held) == (2, reason, True)
    assert "unseen" in decision.message
    assert decision.memory == Memory(shown=Shown(5_000, NOW))
