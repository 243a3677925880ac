"""What holds of replicas for any fleet, and for one under a constant load."""

import itertools
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from kvtide_operator.autoscale.capacity import Shown
from kvtide_operator.autoscale.fleet import Fleet, Pending, Worker
from kvtide_operator.autoscale.memory import Memory, Peak, Window
from kvtide_operator.autoscale.policy import ScalingPolicy
from kvtide_operator.autoscale.worker_state import WorkerState
from tests.operator.test_replicas import NOW, TARGETS, decide

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
