"""This pass's batch limits: carries what is seen into the deciding function, and what it remembers into the status."""

from dataclasses import dataclass

from kvtide_operator.api.status import WorkerStatus
from kvtide_operator.autoscale.batch_limit import LimitDecision, LimitMemory, Move, decide_limit
from kvtide_operator.autoscale.fleet import STALE_AFTER_S
from kvtide_operator.autoscale.policy import targets_of
from kvtide_operator.autoscale.worker_state import WorkerState
from kvtide_operator.reconcile.actions import Event, LimitPush
from kvtide_operator.reconcile.observed import Observed
from kvtide_operator.reconcile.pods import seconds, timestamp


@dataclass(frozen=True)
class Limits:
    """The batch limits of this pass: what to push, what to remember of each worker, what to tell."""

    pushes: tuple[LimitPush, ...]
    workers: tuple[WorkerStatus, ...]
    events: tuple[Event, ...]


def limit_batches(observed: Observed, now: float) -> Limits:
    """Decides the batch limit of every ready worker with fresh numbers; the others keep theirs."""
    known = {worker.name: worker for worker in observed.resource.status.workers or []}
    targets = targets_of(observed.resource.spec.autoscaling)
    pushes, workers, events = [], [], []
    for pod in sorted(observed.ready, key=lambda pod: pod.name):
        sample, before = observed.samples.get(pod.name), known.get(pod.name)
        if sample is None or sample.age_s > STALE_AFTER_S or pod.ip is None:
            workers += [before] if before else []
            continue
        state = sample.state
        decided = decide_limit(state, _memory(before), now, targets)
        if decided.move is not Move.KEEP:
            pushes.append(LimitPush(pod.name, pod.ip, decided.limit))
            moved = f"{pod.name}: batch limit {state.limits.batch_limit} to {decided.limit}: {decided.message}"
            events.append(Event("Normal", f"BatchLimit{decided.move.value}", moved, about=pod.name))
        workers.append(_remember(pod.name, sample.state, decided, before, now))
    return Limits(tuple(pushes), tuple(workers), tuple(events))


def _memory(before: WorkerStatus | None) -> LimitMemory | None:
    if before is None:
        return None
    return LimitMemory(
        started_at=before.started_at,
        preemptions=before.preemptions,
        changed_at=seconds(before.limit_changed_at) if before.limit_changed_at else None,
        lowered_at=seconds(before.limit_lowered_at) if before.limit_lowered_at else None,
    )


def _remember(
    name: str, state: WorkerState, decided: LimitDecision, before: WorkerStatus | None, now: float
) -> WorkerStatus:
    same_process = before is not None and before.started_at == state.started_at
    changed_at = before.limit_changed_at if before and same_process else None
    lowered_at = before.limit_lowered_at if before and same_process else None
    return WorkerStatus(
        name=name,
        started_at=state.started_at,
        batch_limit=decided.limit,
        live_tokens=state.kv.live_tokens,
        waiting=state.requests.waiting,
        preemptions=before.preemptions if before and same_process and decided.settling else state.counters.preemptions,
        limit_changed_at=changed_at if decided.move is Move.KEEP else timestamp(now),
        limit_lowered_at=timestamp(now) if decided.move is Move.LOWER else lowered_at,
    )
