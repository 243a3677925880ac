"""How many sequences a worker may run at once: as many as bring more than they cost.

Where the pool is full, the newest sequences lose their blocks to older ones, and are computed again later. Of n that
run, the last one brings 1 / n of the tokens; a limit is cut where preemptions cost more than that, and raised where
requests wait for it and the pool has room. What the pool held on average when it was too much is remembered and not
gone back to, so that a steady load settles. Where the time between two tokens has a target, a batch that is too large
for it is cut in proportion, once for each window of latencies.
"""

from dataclasses import dataclass, replace
from enum import Enum

from kvtide_operator.autoscale.latency import Targets
from kvtide_operator.autoscale.stretch import Stretch, looked
from kvtide_operator.autoscale.worker_state import WorkerState

# A token that is computed again takes about an eighth of the time of one that is generated, which reads all weights for
# a few sequences: an eighth to a third was seen. So the last of n sequences is worth this share of the tokens, over n.
WORTH = 8.0
# Below this share of what is too much a limit may be raised; in between it stays.
HARMLESS = 0.25
# What a cut leaves of the sequences that run, and of the utilisation that was too much.
CUT = 0.95
# A full pool that loses nothing yet is relieved where that takes at most this share: of few sequences each is too dear.
FEW = 0.06
# Up to here limits are raised after two looks, and up to there where SURE_S says the same.
ROOMY_UTILIZATION = 0.85
FULL_UTILIZATION = 0.95
IDLE_UTILIZATION = 0.50
# How long the effect of a move takes to show, and how long it takes to be sure of it.
SETTLE_S = 4.0
SURE_S = 8.0
# How long a lowered limit is left alone, and for how long it is known what was too much, in seconds.
RECOVER_S = 15.0
FORGET_S = 300.0
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
    """What is remembered of a worker between passes. Times in seconds since 1970.

    stretch: what it did since the last move
    crowded: the mean utilisation at which too much was computed again, when that was last so
    """

    started_at: float
    changed_at: float | None = None
    lowered_at: float | None = None
    stretch: Stretch | None = None
    crowded: float | None = None


@dataclass(frozen=True)
class LimitDecision:
    """The limit a worker should have, why, and what the next pass is to remember."""

    limit: int
    move: Move
    message: str
    memory: LimitMemory


def decide_limit(
    state: WorkerState, memory: LimitMemory | None, now: float, targets: Targets | None = None
) -> LimitDecision:
    """The next batch limit of one worker with fresh numbers: from 1 to the plan's.

    A worker that has restarted, or was never seen before, has no past: it begins at the plan's limit by itself.
    """
    if memory is None or memory.started_at != state.started_at:
        memory = LimitMemory(state.started_at)
    stretch = looked(memory.stretch, state, now)
    memory = replace(memory, stretch=stretch)
    limit, highest = state.limits.batch_limit, state.limits.max_batch_limit
    if _since(memory.lowered_at, now) < SETTLE_S:
        # Those that were put back are computed again.
        return LimitDecision(limit, Move.KEEP, "the last move has yet to show", replace(memory, stretch=None))
    if stretch is None:
        return _raised(limit, _idle_room(state), "idle", memory, now)
    if stretch.looks < 2:
        return LimitDecision(limit, Move.KEEP, "one look is not enough", memory)

    lost = stretch.lost(state, now, SURE_S)
    told = f"{lost:.0%} lost to preemptions, KV {stretch.utilization:.0%}"
    if lost * stretch.running > WORTH:
        if stretch.running < CUT * limit:
            # The pool was the limit, and not this one: no more than it held.
            return _lowered(limit, int(stretch.running), told, memory, now)
        return _lowered(limit, int(CUT * limit), told, replace(memory, crowded=stretch.utilization), now)
    if stretch.utilization > FULL_UTILIZATION and stretch.running >= CUT * limit:
        relieved = min(limit - 1, int(limit * FULL_UTILIZATION / stretch.utilization))
        if limit - relieved <= FEW * limit:
            # The next preemption is near, and what keeps it away is no more than a small part of the batch.
            return _lowered(limit, relieved, told, memory, now)
    slow = _slow(state, targets)
    settled = _since(memory.changed_at, now) >= state.latency.window_seconds
    if slow > 1 and settled:
        running = max(1, min(limit, state.requests.running))
        fewer = max(1, highest // LEAST_SHARE, int(running / min(slow, 2.0)))
        return _lowered(limit, fewer, f"tokens take {slow:.2f} of their target", memory, now)
    room = _room(state, stretch, memory, now) if lost * stretch.running <= HARMLESS * WORTH else 0
    if slow > FAST_ENOUGH:
        room = min(room, int(limit / slow)) if settled else 0
    return _raised(limit, min(room, highest), f"{state.requests.waiting} requests wait, {told}", memory, now)


def _lowered(limit: int, lower: int, why: str, memory: LimitMemory, now: float) -> LimitDecision:
    lower = max(1, lower)
    if lower >= limit:
        return LimitDecision(limit, Move.KEEP, why, memory)
    return LimitDecision(lower, Move.LOWER, why, replace(memory, changed_at=now, lowered_at=now, stretch=None))


def _raised(limit: int, room: int, why: str, memory: LimitMemory, now: float) -> LimitDecision:
    """As far as there is room, by half at most."""
    higher = min(room, limit + max(1, limit // 2))
    if higher <= limit or _since(memory.lowered_at, now) < RECOVER_S:
        return LimitDecision(limit, Move.KEEP, why, memory)
    return LimitDecision(higher, Move.RAISE, why, replace(memory, changed_at=now, stretch=None))


def _idle_room(state: WorkerState) -> int:
    return state.limits.max_batch_limit if state.kv.utilization < IDLE_UTILIZATION else 0


def _room(state: WorkerState, stretch: Stretch, memory: LimitMemory, now: float) -> int:
    """The highest limit that is harmless: nobody waits and the pool is half empty; or the limit is what requests wait
    for, and as many sequences of the present mean leave the pool roomy, or not quite full where that is sure. 0 where
    there is none."""
    limit, used = state.limits.batch_limit, stretch.utilization
    if state.requests.waiting == 0:
        return _idle_room(state)
    if stretch.running < CUT * limit:
        return 0
    if used <= 0:
        return state.limits.max_batch_limit
    full = FULL_UTILIZATION
    if memory.crowded is not None and _since(memory.lowered_at, now) < FORGET_S:
        full = min(full, CUT * memory.crowded)
    sure = now - stretch.began >= SURE_S
    return int((full if sure else min(ROOMY_UTILIZATION, full)) * stretch.running / used)


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
