"""How many sequences a worker may run at once: fewer when its KV memory runs out, more when there is room.

The two thresholds lie apart, and a limit is raised only where the pool is predicted to stay clear of the upper one,
so that a steady load settles instead of swinging. Where the time between two tokens has a target, a batch that is too
large for it is cut in proportion, once for each window of latencies.
"""

import math
from dataclasses import dataclass
from enum import Enum

from kvtide_operator.autoscale.latency import Targets
from kvtide_operator.autoscale.worker_state import WorkerState

CROWDED_UTILIZATION = 0.95
ROOMY_UTILIZATION = 0.85
IDLE_UTILIZATION = 0.50
# How long the effect of a move takes to show, and how long a lowered limit is left alone, in seconds.
SETTLE_S = 4.0
RECOVER_S = 15.0
# Latencies never take more than three quarters of the plan's limit: behind a small batch requests wait for their turn.
LEAST_SHARE = 4
# Below this share of the target, latencies are no reason to wait for their window before a limit is raised.
FAST_ENOUGH = 0.5


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


def decide_limit(
    state: WorkerState, memory: LimitMemory | None, now: float, targets: Targets | None = None
) -> LimitDecision:
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

    used, running = state.kv.utilization, max(1, min(limit, state.requests.running))
    preempted = state.counters.preemptions - memory.preemptions if memory else 0
    if preempted > 0 or used > CROWDED_UTILIZATION:
        # What runs is what fits. A limit below it would put sequences back, who lose their blocks as to a preemption;
        # one above it lets in others, who would be preempted in turn.
        return _lower(limit, running, f"{preempted} preemptions, KV {used:.0%}")
    slow = _slow(state, targets)
    looked = since_change >= state.latency.window_seconds
    if slow > 1 and looked:
        least = max(1, highest // LEAST_SHARE)
        return _lower(limit, max(least, int(running / min(slow, 2.0))), f"tokens take {slow:.2f} of their target")
    if limit >= highest or since_lowered < RECOVER_S:
        return LimitDecision(limit, Move.KEEP, f"KV {used:.0%}")
    higher = min(highest, limit + max(1, limit // 2), _roomy(state))
    if slow > FAST_ENOUGH:
        higher = min(higher, int(limit / slow)) if looked else limit
    if higher > limit:
        return LimitDecision(higher, Move.RAISE, f"{state.requests.waiting} requests wait, KV {used:.0%}")
    return LimitDecision(limit, Move.KEEP, f"KV {used:.0%}")


def _lower(limit: int, lower: int, why: str) -> LimitDecision:
    lower = max(1, lower)
    return LimitDecision(lower, Move.LOWER, why) if lower < limit else LimitDecision(limit, Move.KEEP, why)


def _roomy(state: WorkerState) -> int:
    """The highest limit that is harmless: the worker is idle, or its limit binds and as many more sequences of the
    present mean would leave the pool roomy. 0 where the limit is not what requests wait for."""
    requests, used = state.requests, state.kv.utilization
    if requests.waiting == 0:
        return state.limits.max_batch_limit if used < IDLE_UTILIZATION else 0
    if requests.running < state.limits.batch_limit:
        return 0
    if used <= 0:
        return state.limits.max_batch_limit
    return math.ceil(ROOMY_UTILIZATION * requests.running / used) - 1


def _slow(state: WorkerState, targets: Targets | None) -> float:
    """The time between two tokens as a share of its target; 0 without one, where a batch of one is at work, and where
    the first tokens have no time to spare: who waits for a smaller batch waits for these."""
    if targets is None or state.requests.running <= 1:
        return 0.0
    seen, target = state.latency.time_per_output_token_p95_seconds, targets.time_per_output_token_s
    first, in_time = state.latency.time_to_first_token_p95_seconds, targets.time_to_first_token_s
    if first is not None and in_time is not None and first > FAST_ENOUGH * in_time:
        return 0.0
    return seen / target if seen is not None and target is not None else 0.0


def _since(moment: float | None, now: float) -> float:
    return float("inf") if moment is None else now - moment
