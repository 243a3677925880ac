"""The batch limit of one worker: rows, and simulated pools that it must come to rest on."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtide_operator.autoscale.batch_limit import LimitMemory, Move, decide_limit
from kvtide_operator.autoscale.latency import Targets
from kvtide_operator.autoscale.stretch import Stretch
from kvtide_operator.autoscale.worker_state import LatencyState, WorkerState

NOW = 50_000.0
STARTED = 49_000.0


def memory(
    preemptions: int = 0,
    changed: float | None = None,
    lowered: float | None = None,
    *,
    running: float = 16.0,
    utilization: float = 0.9,
    generated: int = 0,
    seconds: float = 10.0,
    crowded: float | None = None,
) -> LimitMemory:
    """Of a worker that has been looked at for so many seconds; counts are those of the beginning."""
    stretch = Stretch(NOW - seconds, 6, running, utilization, generated, preemptions)
    return LimitMemory(STARTED, changed, lowered, stretch, crowded)


@pytest.mark.parametrize(
    ("state", "past", "limit", "move"),
    [
        # A pool of 10,000 tokens at 0.9, 16 sequences of 562. 16 · 562 lost / 1,000 generated = 9.0 for one preemption:
        # above 8.
        ({"running": 16, "preemptions": 1}, memory(), 15, Move.LOWER),
        # of 1,200 generated it is 7.5: neither here nor there
        ({"running": 16, "waiting": 5, "preemptions": 1, "generated": 1_200}, memory(), 16, Move.KEEP),
        # 4.5 s are judged as 8 s would be with as many tokens: 1,000 · 8 / 4.5 = 1,778, 5.1
        ({"running": 16, "preemptions": 1}, memory(seconds=4.5), 16, Move.KEEP),
        ({"running": 16, "preemptions": 2}, memory(seconds=4.5), 15, Move.LOWER),
        # one look is not enough, however much is lost
        ({"running": 16, "preemptions": 9}, memory(seconds=21), 16, Move.KEEP),
        # the pool was the limit: as many as ran
        ({"running": 10, "preemptions": 9}, memory(running=11.4), 11, Move.LOWER),
        # a full pool that loses nothing yet: 40 · 0.95 / 0.96 = 39.6 of many, all of few
        (
            {"running": 40, "limit": 40, "max_limit": 64, "utilization": 0.96},
            memory(running=40, utilization=0.96),
            39,
            Move.LOWER,
        ),
        (
            {"running": 40, "limit": 40, "max_limit": 64, "utilization": 0.95},
            memory(running=40, utilization=0.95),
            40,
            Move.KEEP,
        ),
        ({"running": 16, "utilization": 0.99}, memory(utilization=0.99), 16, Move.KEEP),
        # one remains
        ({"running": 1, "preemptions": 9, "limit": 1}, memory(running=1.0), 1, Move.KEEP),
        # old preemptions, and those of a worker that was never seen before, are no news
        ({"running": 16, "preemptions": 3}, memory(preemptions=3), 16, Move.KEEP),
        ({"running": 16, "preemptions": 3}, None, 16, Move.KEEP),
        # room and a queue: up by half, at least by one, never beyond the plan
        ({"running": 8, "waiting": 5, "limit": 8}, memory(running=8, utilization=0.40), 12, Move.RAISE),
        ({"running": 1, "waiting": 5, "limit": 1}, memory(running=1, utilization=0.10), 2, Move.RAISE),
        # or as far as there is room: 0.60 · 11 / 8 = 0.825, 0.60 · 12 / 8 = 0.90
        ({"running": 8, "waiting": 5, "limit": 8}, memory(running=8, utilization=0.60, seconds=4), 11, Move.RAISE),
        ({"running": 16, "waiting": 5, "max_limit": 17}, memory(utilization=0.40), 17, Move.RAISE),
        ({"running": 16, "waiting": 5}, memory(utilization=0.40), 16, Move.KEEP),
        # or nearly full, after a longer look: 0.60 · 12 / 8 = 0.90, 0.80 · 9 / 8 = 0.90, 0.86 · 9 / 8 = 0.97
        ({"running": 8, "waiting": 5, "limit": 8}, memory(running=8, utilization=0.80), 9, Move.RAISE),
        ({"running": 8, "waiting": 5, "limit": 8}, memory(running=8, utilization=0.80, seconds=7.9), 8, Move.KEEP),
        ({"running": 8, "waiting": 5, "limit": 8}, memory(running=8, utilization=0.86), 8, Move.KEEP),
        # not to where it was too much, for five minutes: 0.80 · 9 / 8 = 0.90 is above 0.95 · 0.94 = 0.893
        (
            {"running": 8, "waiting": 5, "limit": 8},
            memory(running=8, utilization=0.80, crowded=0.94, lowered=NOW - 299),
            8,
            Move.KEEP,
        ),
        (
            {"running": 8, "waiting": 5, "limit": 8},
            memory(running=8, utilization=0.80, crowded=0.94, lowered=NOW - 300),
            9,
            Move.RAISE,
        ),
        # what is lost is above a quarter of what is too much: 8 · 500 / 1,800 = 2.2
        (
            {"running": 8, "waiting": 5, "limit": 8, "preemptions": 1, "generated": 1_800},
            memory(running=8, utilization=0.40),
            8,
            Move.KEEP,
        ),
        # the limit is not what they wait for
        ({"running": 5, "waiting": 5, "limit": 8}, memory(running=5, utilization=0.40), 8, Move.KEEP),
        # nobody waits: back towards the plan when it is quiet, not before
        ({"running": 1, "utilization": 0.10, "limit": 8}, memory(running=1), 12, Move.RAISE),
        ({"utilization": 0.0, "limit": 8}, None, 12, Move.RAISE),
        ({"running": 7, "utilization": 0.60, "limit": 8}, memory(running=7), 8, Move.KEEP),
        # patience: 4 s after a cut, 15 s before a lowered limit is raised
        ({"running": 16, "preemptions": 9}, memory(changed=NOW - 3, lowered=NOW - 3), 16, Move.KEEP),
        ({"running": 16, "preemptions": 9}, memory(changed=NOW - 4, lowered=NOW - 4), 15, Move.LOWER),
        (
            {"running": 8, "waiting": 5, "limit": 8},
            memory(changed=NOW - 14, lowered=NOW - 14, running=8, utilization=0.40),
            8,
            Move.KEEP,
        ),
        (
            {"running": 8, "waiting": 5, "limit": 8},
            memory(changed=NOW - 15, lowered=NOW - 15, running=8, utilization=0.40),
            12,
            Move.RAISE,
        ),
        # another process than the one remembered: its past is not ours
        ({"running": 16, "preemptions": 9, "started_at": NOW - 5}, memory(), 16, Move.KEEP),
    ],
)
def test_a_row(
    make_state: Callable[..., WorkerState],
    state: dict[str, float],
    past: LimitMemory | None,
    limit: int,
    move: Move,
) -> None:
    tokens = (0, state.pop("generated", 1_000))
    if past is not None and past.stretch is not None:
        state.setdefault("utilization", past.stretch.utilization)
    decided = decide_limit(make_state(**{"started_at": STARTED, "tokens": tokens, **state}), past, NOW)
    assert (decided.limit, decided.move) == (limit, move)


def test_looks_add_up_until_the_limit_moves_or_twenty_seconds_are_over(
    make_state: Callable[..., WorkerState],
) -> None:
    def look(past: LimitMemory | None, at: float, running: int, generated: int) -> LimitMemory:
        state = make_state(
            started_at=STARTED, running=running, utilization=running / 20, tokens=(0, generated), preemptions=2
        )
        return decide_limit(state, past, at).memory

    first = look(None, NOW, 4, 100)
    assert first.stretch == Stretch(NOW, 1, 4.0, 0.2, 100, 2)
    second = look(first, NOW + 2, 8, 150)
    assert second.stretch == Stretch(NOW, 2, 6.0, pytest.approx(0.3), 100, 2)
    # nothing was generated since it began: nothing to add
    assert look(first, NOW + 2, 8, 100).stretch == first.stretch
    assert look(second, NOW + 20, 12, 900).stretch == Stretch(NOW, 3, 8.0, pytest.approx(0.4), 100, 2)
    assert look(second, NOW + 21, 12, 900).stretch == Stretch(NOW + 21, 1, 12.0, pytest.approx(0.6), 900, 2)
    assert look(second, NOW + 4, 0, 900).stretch is None


@pytest.mark.parametrize(
    ("token_s", "running", "limit", "changed", "lowered_to", "move"),
    [
        # a target of 0.1 s: 0.125 s is 1.25 of it, and 16 / 1.25 = 12
        (0.125, 16, 16, None, 12, Move.LOWER),
        # the last move is not in all of the window yet
        (0.125, 16, 16, NOW - 59, 16, Move.KEEP),
        (0.125, 16, 16, NOW - 60, 12, Move.LOWER),
        # half at most, and a quarter of the plan's at least
        (0.900, 16, 16, None, 8, Move.LOWER),
        (0.900, 6, 6, None, 4, Move.LOWER),
        # one alone is not slow because of the others
        (0.900, 1, 16, None, 16, Move.KEEP),
        # back up, as far as the target allows: 8 / 0.8 = 10
        (0.080, 8, 8, None, 10, Move.RAISE),
        (0.080, 8, 8, NOW - 59, 8, Move.KEEP),
        (0.040, 8, 8, NOW - 59, 12, Move.RAISE),
    ],
)
def test_a_batch_is_cut_to_what_the_time_between_two_tokens_allows(
    make_state: Callable[..., WorkerState],
    token_s: float,
    running: int,
    limit: int,
    changed: float | None,
    lowered_to: int,
    move: Move,
) -> None:
    latency = LatencyState(time_per_output_token_p95_seconds=token_s)
    state = make_state(running=running, waiting=5, utilization=0.3, limit=limit, started_at=STARTED)
    state, past = (
        state.model_copy(update={"latency": latency}),
        memory(changed=changed, running=running, utilization=0.3),
    )
    decided = decide_limit(state, past, NOW, Targets(None, 0.1))
    assert (decided.limit, decided.move) == (lowered_to, move)
    unbound = decide_limit(state, past, NOW)
    assert unbound.move is not Move.LOWER


def _pool(limit: int, sequence_tokens: int, capacity: int, preemptions: int, generated: int, load: int) -> WorkerState:
    """A pool under a steady load of equal sequences: as many run as are allowed and fit."""
    fits = capacity // sequence_tokens
    running = min(limit, fits, load)
    return WorkerState.model_validate(
        {
            "startedAt": STARTED,
            "sampledAt": 0,
            "kv": {
                "capacityTokens": capacity,
                "liveTokens": running * sequence_tokens,
                "utilization": running * sequence_tokens / capacity,
            },
            "requests": {
                "running": running,
                "waiting": load - running,
                "queuedPromptTokens": 0,
                "expectedOutputTokens": 0,
            },
            "limits": {"batchLimit": limit, "maxBatchLimit": 64},
            "counters": {"preemptions": preemptions, "generationTokens": generated},
        }
    )


@given(
    sequence_tokens=st.integers(50, 5_000),
    load=st.integers(1, 200),
    start=st.integers(1, 64),
    each=st.integers(1, 3),
    tokens_a_look=st.integers(5, 100),
)
def test_a_steady_load_settles_and_stays_within_the_plan(
    sequence_tokens: int, load: int, start: int, each: int, tokens_a_look: int
) -> None:
    limit, now, preemptions, generated, past = start, NOW, 0, 0, None
    moves: list[Move] = []
    for _ in range(400):
        if min(limit, load) * sequence_tokens > 10_000:
            preemptions += each
        state = _pool(limit, sequence_tokens, 10_000, preemptions, generated, load)
        generated += state.requests.running * tokens_a_look
        decided = decide_limit(state, past, now)
        assert 1 <= decided.limit <= 64
        past, limit, now = decided.memory, decided.limit, now + 2.0
        moves.append(decided.move)
    # After 30 looks, two seconds apart, it has come to rest: a minute.
    assert set(moves[30:]) == {Move.KEEP}
