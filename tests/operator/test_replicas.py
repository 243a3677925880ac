"""Rows of the design's rule. One worker holds 10,000 tokens; up at 85 %, down under 70 %, window 300 s."""

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


CAPACITY = 20_000


@st.composite
def workers(draw: st.DrawFn) -> Worker:
    live = draw(st.integers(0, CAPACITY))
    state = WorkerState.model_validate(
        {
            "startedAt": 0,
            "sampledAt": 0,
            "kv": {"capacityTokens": CAPACITY, "liveTokens": live, "utilization": live / CAPACITY},
            "requests": {
                "running": draw(st.integers(0, 8)),
                "waiting": draw(st.integers(0, 20)),
                "queuedPromptTokens": draw(st.integers(0, 100_000)),
                "expectedOutputTokens": 50,
            },
            "limits": {"batchLimit": 8, "maxBatchLimit": 8},
            "latency": {"timeToFirstTokenP95Seconds": draw(st.none() | st.floats(0, 10))},
        }
    )
    return Worker(
        name=draw(st.sampled_from("abcdef")),
        state=draw(st.sampled_from([state, state, state, None])),
        age_s=draw(st.sampled_from([0.5, 0.5, 60.0])),
        wrong=draw(st.sampled_from([None, None, None, "reports another model"])),
        ready_s=draw(st.floats(0, 1_000)),
    )


pending = st.lists(st.builds(Pending, st.just("p"), st.floats(0, 4_000), st.booleans(), st.booleans()), max_size=4)
memories = st.builds(
    Memory,
    st.none()
    | st.builds(
        Window,
        st.floats(0, NOW),
        st.floats(NOW - 100, NOW),
        st.integers(1_660, 1_667),  # 10,000 s in steps of 6 s
        st.lists(st.integers(0, 200_000), min_size=1, max_size=11).map(tuple),
    ),
    st.none() | st.builds(Shown, st.integers(1, CAPACITY), st.floats(0, NOW)),
    st.none() | st.builds(Peak, st.floats(1, 100_000), st.floats(0, NOW), st.floats(0, 100_000)),
)


@given(
    ready=st.lists(workers(), max_size=6),
    waiting=pending,
    current=st.integers(0, 12),
    bounds=st.tuples(st.integers(1, 5), st.integers(0, 5)),
    memory=memories,
)
def test_never_out_of_bounds_never_down_on_missing_data_always_up_on_need(
    ready: list[Worker], waiting: list[Pending], current: int, bounds: tuple[int, int], memory: Memory
) -> None:
    policy = replace(TARGETS, min_replicas=bounds[0], max_replicas=sum(bounds), window_s=60.0)
    fleet = Fleet(current, tuple(ready), tuple(waiting))
    decision = decide(fleet, policy, memory)
    assert policy.min_replicas <= decision.replicas <= policy.max_replicas
    if not ready or any(one.missing or one.stale or one.wrong for one in ready):
        assert decision.replicas == policy.clamp(current)
        return
    if policy.clamp(current) != current:
        # Back within the bounds first: the next pass weighs.
        assert decision.replicas == policy.clamp(current)
        return
    assert decision.load is not None
    # What memory can never hold is asked for, whatever computing or latencies say.
    least = -(-decision.load.demand * 20 // (17 * CAPACITY))
    assert decision.replicas >= min(policy.max_replicas, least)
    if decision.replicas < current:
        assert memory.window is not None
        assert NOW - memory.window.began >= 60.0
        assert decision.load.demand < 0.70 * CAPACITY * decision.replicas or decision.replicas == 1


@given(
    demand=st.integers(0, 120_000),
    noise=st.lists(st.integers(-3_000, 3_000), min_size=40, max_size=40),
    start=st.integers(1, 6),
)
def test_a_constant_load_turns_at_most_once_in_a_window(demand: int, noise: list[int], start: int) -> None:
    """The load is spread over the replicas, a new one is ready 30 s after it is asked for, a look every 10 s."""
    policy = ScalingPolicy(1, 6, 0.85, 0.70, 100.0)
    replicas, memory, ready_at = start, Memory(), [0.0] * start
    moves: list[tuple[float, int]] = []
    for step in range(160):
        now = 10.0 * step
        ready = [at for at in ready_at if at <= now]
        load = max(0, demand + noise[step % len(noise)])
        state = WorkerState.model_validate(
            {
                "startedAt": 0,
                "sampledAt": 0,
                "kv": {"capacityTokens": CAPACITY, "liveTokens": min(load // len(ready), CAPACITY), "utilization": 0.5},
                "requests": {
                    "running": 4,
                    "waiting": 0,
                    "queuedPromptTokens": max(0, load // len(ready) - CAPACITY),
                    "expectedOutputTokens": 0,
                },
                "limits": {"batchLimit": 8, "maxBatchLimit": 8},
            }
        )
        fleet = Fleet(replicas, tuple(Worker(f"w{i}", state) for i in range(len(ready))))
        decision = decide(fleet, policy, memory, now)
        memory = decision.memory
        if decision.replicas > replicas:
            ready_at += [now + 30.0] * (decision.replicas - replicas)
        elif decision.replicas < replicas:
            ready_at = sorted(ready_at)[: decision.replicas]
        if decision.replicas != replicas:
            moves.append((now, decision.replicas - replicas))
        replicas = decision.replicas
    turns = [at for (_, before), (at, after) in itertools.pairwise(moves) if before * after < 0]
    assert all(later - earlier >= 100.0 for earlier, later in itertools.pairwise(turns))
