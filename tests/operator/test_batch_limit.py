"""The batch limit of one worker: rows, and a simulated pool that it must come to rest on."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtide_operator.autoscale.batch_limit import LimitMemory, Move, decide_limit
from kvtide_operator.autoscale.latency import Targets
from kvtide_operator.autoscale.worker_state import LatencyState, WorkerState

NOW = 50_000.0
STARTED = 49_000.0


def memory(preemptions: int = 0, changed: float | None = None, lowered: float | None = None) -> LimitMemory:
    return LimitMemory(STARTED, preemptions, changed, lowered)


@pytest.mark.parametrize(
    ("state", "past", "limit", "move"),
    [
        # crowded: no more than run already, who keep their blocks
        ({"running": 14, "utilization": 0.96}, memory(), 14, Move.LOWER),
        ({"running": 16, "utilization": 0.96}, memory(), 16, Move.KEEP),
        ({"running": 0, "utilization": 1.0, "limit": 2}, memory(), 1, Move.LOWER),
        # preempting: whatever the utilisation says
        ({"running": 8, "utilization": 0.60, "preemptions": 3}, memory(preemptions=2), 8, Move.LOWER),
        # old preemptions, and those of a worker that was never seen before, are no news
        ({"running": 8, "utilization": 0.60, "preemptions": 3}, memory(preemptions=3), 16, Move.KEEP),
        ({"running": 8, "utilization": 0.60, "preemptions": 3}, None, 16, Move.KEEP),
        # room and a queue: up by half, at least by one, never beyond the plan
        ({"running": 8, "waiting": 5, "utilization": 0.40, "limit": 8}, memory(), 12, Move.RAISE),
        ({"running": 1, "waiting": 5, "utilization": 0.10, "limit": 1}, memory(), 2, Move.RAISE),
        # or as far as there is room: 0.60 · 11 / 8 = 0.825, 0.60 · 12 / 8 = 0.90
        ({"running": 8, "waiting": 5, "utilization": 0.60, "limit": 8}, memory(), 11, Move.RAISE),
        ({"running": 16, "waiting": 5, "utilization": 0.40, "limit": 16, "max_limit": 17}, memory(), 17, Move.RAISE),
        ({"running": 16, "waiting": 5, "utilization": 0.40}, memory(), 16, Move.KEEP),
        # room would be gone: 0.80 · 9 / 8 = 0.90
        ({"running": 8, "waiting": 5, "utilization": 0.80, "limit": 8}, memory(), 8, Move.KEEP),
        # small batches are careful: 0.50 · 3 / 2 = 0.75 goes, 0.60 · 3 / 2 = 0.90 does not
        ({"running": 2, "waiting": 5, "utilization": 0.50, "limit": 2}, memory(), 3, Move.RAISE),
        ({"running": 2, "waiting": 5, "utilization": 0.60, "limit": 2}, memory(), 2, Move.KEEP),
        # the limit is not what they wait for
        ({"running": 5, "waiting": 5, "utilization": 0.40, "limit": 8}, memory(), 8, Move.KEEP),
        # nobody waits: back towards the plan when it is quiet, not before
        ({"running": 1, "utilization": 0.10, "limit": 8}, memory(), 12, Move.RAISE),
        ({"running": 7, "utilization": 0.60, "limit": 8}, memory(), 8, Move.KEEP),
        # between 0.85 and 0.95: neither
        ({"running": 8, "waiting": 5, "utilization": 0.90, "limit": 8}, memory(), 8, Move.KEEP),
        # patience: 4 s after any move, 15 s before a lowered limit is raised
        ({"running": 14, "utilization": 0.99}, memory(changed=NOW - 3), 16, Move.KEEP),
        ({"running": 14, "utilization": 0.99}, memory(changed=NOW - 4), 14, Move.LOWER),
        (
            {"running": 8, "waiting": 5, "utilization": 0.40, "limit": 8},
            memory(changed=NOW - 14, lowered=NOW - 14),
            8,
            Move.KEEP,
        ),
        (
            {"running": 8, "waiting": 5, "utilization": 0.40, "limit": 8},
            memory(changed=NOW - 15, lowered=NOW - 15),
            12,
            Move.RAISE,
        ),
        # another process than the one remembered: its past is not ours
        (
            {"running": 8, "utilization": 0.60, "preemptions": 1, "started_at": NOW - 5},
            memory(preemptions=0, changed=NOW - 1),
            16,
            Move.KEEP,
        ),
    ],
)
def test_a_row(
    make_state: Callable[..., WorkerState],
    state: dict[str, float],
    past: LimitMemory | None,
    limit: int,
    move: Move,
) -> None:
    decided = decide_limit(make_state(**{"started_at": STARTED, **state}), past, NOW)
    assert (decided.limit, decided.move) == (limit, move)


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
    decided = decide_limit(
        state.model_copy(update={"latency": latency}), memory(changed=changed), NOW, Targets(None, 0.1)
    )
    assert (decided.limit, decided.move) == (lowered_to, move)
    unbound = decide_limit(state.model_copy(update={"latency": latency}), memory(changed=changed), NOW)
    assert unbound.move is not Move.LOWER


def _pool(limit: int, sequence_tokens: int, capacity: int, preemptions: int, load: int) -> WorkerState:
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
            "counters": {"preemptions": preemptions},
        }
    )


@given(sequence_tokens=st.integers(50, 5_000), load=st.integers(1, 200), start=st.integers(1, 64))
def test_a_steady_load_settles_and_stays_within_the_plan(sequence_tokens: int, load: int, start: int) -> None:
    limit, now, preemptions, past = start, NOW, 0, None
    moves: list[Move] = []
    for _ in range(400):
        if min(limit, load) * sequence_tokens > 10_000:
            preemptions += 1
        state = _pool(limit, sequence_tokens, 10_000, preemptions, load)
        decided = decide_limit(state, past, now)
        assert 1 <= decided.limit <= 64
        moved = decided.move is not Move.KEEP
        past = LimitMemory(
            STARTED,
            preemptions,
            now if moved else (past.changed_at if past else None),
            now if decided.move is Move.LOWER else (past.lowered_at if past else None),
        )
        moves.append(decided.move)
        limit, now = decided.limit, now + 2.0
    # After 30 looks, two seconds apart, it has come to rest: a minute.
    assert set(moves[30:]) == {Move.KEEP}
