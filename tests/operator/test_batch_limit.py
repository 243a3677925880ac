"""The batch limit of one worker: rows, and a simulated pool that it must come to rest on."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtide_operator.autoscale.batch_limit import LimitMemory, Move, decide_limit
from kvtide_operator.autoscale.worker_state import WorkerState

NOW = 50_000.0
STARTED = 49_000.0


def memory(preemptions: int = 0, changed: float | None = None, lowered: float | None = None) -> LimitMemory:
    return LimitMemory(STARTED, preemptions, changed, lowered)


@pytest.mark.parametrize(
    ("state", "past", "limit", "move"),
    [
        # crowded: what runs comes down by an eighth, at least by one
        ({"running": 16, "utilization": 0.96}, memory(), 14, Move.LOWER),
        ({"running": 6, "utilization": 0.96}, memory(), 5, Move.LOWER),
        ({"running": 1, "utilization": 1.0, "limit": 1}, memory(), 1, Move.KEEP),
        # preempting: whatever the utilisation says
        ({"running": 8, "utilization": 0.60, "preemptions": 3}, memory(preemptions=2), 7, Move.LOWER),
        # old preemptions, and those of a worker that was never seen before, are no news
        ({"running": 8, "utilization": 0.60, "preemptions": 3}, memory(preemptions=3), 16, Move.KEEP),
        ({"running": 8, "utilization": 0.60, "preemptions": 3}, None, 16, Move.KEEP),
        # room and a queue: up by an eighth, at least by one, never beyond the plan
        ({"running": 8, "waiting": 5, "utilization": 0.40, "limit": 8}, memory(), 9, Move.RAISE),
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
        ({"running": 1, "utilization": 0.10, "limit": 8}, memory(), 9, Move.RAISE),
        ({"running": 7, "utilization": 0.60, "limit": 8}, memory(), 8, Move.KEEP),
        # between 0.85 and 0.95: neither
        ({"running": 8, "waiting": 5, "utilization": 0.90, "limit": 8}, memory(), 8, Move.KEEP),
        # patience: 4 s after any move, 15 s before a lowered limit is raised
        ({"running": 16, "utilization": 0.99}, memory(changed=NOW - 3), 16, Move.KEEP),
        ({"running": 16, "utilization": 0.99}, memory(changed=NOW - 4), 14, Move.LOWER),
        (
            {"running": 8, "waiting": 5, "utilization": 0.40, "limit": 8},
            memory(changed=NOW - 14, lowered=NOW - 14),
            8,
            Move.KEEP,
        ),
        (
            {"running": 8, "waiting": 5, "utilization": 0.40, "limit": 8},
            memory(changed=NOW - 15, lowered=NOW - 15),
            9,
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
    assert set(moves[-100:]) == {Move.KEEP}
