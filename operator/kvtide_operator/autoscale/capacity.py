"""What one replica can serve, in tokens: what its memory holds, or less where computing is what limits it.

That computing is the limit shows in two ways: a queue stands at the plan's batch limit though memory is free, or
latencies pass their targets. Either is over when there are enough replicas, so what was shown is remembered; else
their number would swing between what memory and what computing asks for.
"""

import math
from dataclasses import dataclass
from statistics import median

from kvtide_operator.autoscale.worker_state import WorkerState

# Below this utilisation a standing queue is not the memory's fault.
FREE_UTILIZATION = 0.85
# A batch that has just begun holds few tokens and shows far too little: never believe less than memory / 4.
LEAST_SHOWN = 4
# A queue that stands for so long is believed to two thirds. A pass after the first one is about this long.
BELIEF_S = 20.0
FIRST_LOOK_S = 2.0
# What nobody has shown again for so long is believed to be twice as much: a fleet that has become too large for other
# requests than it was made for finds that out, one replica at a time.
DOUBLES_S = 1800.0


@dataclass(frozen=True)
class Shown:
    """The most tokens that a replica was seen to serve well, and when that was seen last, in seconds since 1970."""

    tokens: int
    seen_at: float


def memory_tokens(states: list[WorkerState]) -> int:
    """The tokens that the memory of a replica holds: the median of at least one worker."""
    return round(median(state.kv.capacity_tokens for state in states))


def capacity_tokens(memory: int, shown: Shown | None, now: float) -> int:
    """The tokens that a replica can serve."""
    if shown is None:
        return memory
    doublings = min(16.0, max(0.0, now - shown.seen_at) / DOUBLES_S)
    return min(memory, max(round(shown.tokens * 2**doublings), memory // LEAST_SHOWN, 1))


def learn_from_queues(warm: list[WorkerState], memory: int, shown: Shown | None, now: float) -> Shown | None:
    """What is believed after a look at the workers' queues: slowly less while one stands, at once more where workers
    hold more without one. A worker that has shown that it serves what its blocks hold has prompts yet to be computed
    among these."""
    before = capacity_tokens(memory, shown, now)
    standing = [held_tokens(state) for state in warm if _queue_stands(state)]
    if standing:
        since = FIRST_LOOK_S if shown is None else min(BELIEF_S, now - shown.seen_at)
        share = 1 - math.exp(-max(0.0, since) / BELIEF_S)
        return Shown(round(before + share * (min(memory, median(standing)) - before)), now)
    if shown is None or before == memory:
        return None
    held = round(median(held_tokens(state) for state in warm)) if warm else 0
    return Shown(held, now) if held > before else shown


def learn_from_latency(tokens_per_replica: float, memory: int, shown: Shown | None, now: float) -> Shown | None:
    """What is believed after so many tokens of each replica were too many for its latency targets."""
    if tokens_per_replica >= capacity_tokens(memory, shown, now):
        return shown
    return Shown(max(round(tokens_per_replica), memory // LEAST_SHOWN, 1), now)


def held_tokens(state: WorkerState) -> int:
    """Tokens for which a worker's live blocks have room."""
    return round(state.kv.utilization * state.kv.capacity_tokens)


def _queue_stands(state: WorkerState) -> bool:
    """Whether requests wait for their turn and not for memory. Below the plan's batch limit it was us who held them
    back, and for the memory's sake."""
    requests = state.requests
    at_limit = requests.waiting > 0 and requests.running >= state.limits.max_batch_limit
    return at_limit and state.kv.utilization < FREE_UTILIZATION
