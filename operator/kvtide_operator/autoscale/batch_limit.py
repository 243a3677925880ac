"""How many sequences a worker may run at once: fewer when its KV memory runs out, more when there is room.

The two thresholds lie apart, and a limit is raised only where the pool is predicted to stay clear of the upper one,
so that a steady load settles instead of swinging.
"""

from dataclasses import dataclass
from enum import Enum

from kvtide_operator.autoscale.worker_state import WorkerState

CROWDED_UTILIZATION = 0.95
ROOMY_UTILIZATION = 0.85
IDLE_UTILIZATION = 0.50
# How long the effect of a move takes to show, and how long a lowered limit is left alone, in seconds.
SETTLE_S = 4.0
RECOVER_S = 15.0


class Move(Enum):
    """What is done to a limit."""

    KEEP = "Keep"
    LOWER = "Lower"
    RAISE = "Raise"


@dataclass(frozen=True)
class LimitMemory:
    """What is remembered of a worker between passes. Times in seconds since 1970."""

    started_at: float
    preemptions: int
    changed_at: float | None = None
    lowered_at: float | None = None


@dataclass(frozen=True)
class LimitDecision:
    """The limit a worker should have, and why.

    settling: the last move has yet to show, so what happened since the last decision is still to be judged
    """

    limit: int
    move: Move
    message: str
    settling: bool = False


def decide_limit(state: WorkerState, memory: LimitMemory | None, now: float) -> LimitDecision:
    """The next batch limit of one worker with fresh numbers: from 1 to the plan's.

    A worker that has restarted, or was never seen before, has no past: it begins at the plan's limit by itself.
    """
    if memory is not None and memory.started_at != state.started_at:
        memory = None
    limit, highest = state.limits.batch_limit, state.limits.max_batch_limit
    since_change = _since(memory.changed_at if memory else None, now)
    since_lowered = _since(memory.lowered_at if memory else None, now)
    if since_change < SETTLE_S:
        return LimitDecision(limit, Move.KEEP, "the last move has yet to show", settling=True)

    used = state.kv.utilization
    preempted = state.counters.preemptions - memory.preemptions if memory else 0
    if preempted > 0 or used > CROWDED_UTILIZATION:
        # What runs is what fills the pool: a limit far above it would not be felt if it came down by itself.
        running = max(1, min(limit, state.requests.running))
        lower = max(1, running - max(1, running // 8))
        why = f"{preempted} preemptions, KV {used:.0%}"
        return LimitDecision(lower, Move.LOWER if lower < limit else Move.KEEP, why)
    if limit >= highest or since_lowered < RECOVER_S:
        return LimitDecision(limit, Move.KEEP, f"KV {used:.0%}")

    higher = min(highest, limit + max(1, limit // 8))
    if _has_room(state, higher):
        waiting = state.requests.waiting
        return LimitDecision(higher, Move.RAISE, f"{waiting} requests wait, KV {used:.0%}")
    return LimitDecision(limit, Move.KEEP, f"KV {used:.0%}")


def _has_room(state: WorkerState, higher: int) -> bool:
    """Whether a higher limit is harmless: it binds and the pool would stay roomy, or the worker is idle."""
    requests, used = state.requests, state.kv.utilization
    if requests.waiting == 0:
        return used < IDLE_UTILIZATION
    if requests.running < state.limits.batch_limit:
        return False
    return used * higher / requests.running < ROOMY_UTILIZATION


def _since(moment: float | None, now: float) -> float:
    return float("inf") if moment is None else now - moment
