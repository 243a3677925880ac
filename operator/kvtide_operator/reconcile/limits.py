"""This pass's batch limits: carries what is seen into the deciding function, and what it remembers into the status."""

from dataclasses import dataclass

from kvtide_operator.api.status import LimitStretch, WorkerStatus
from kvtide_operator.autoscale.batch_limit import LimitDecision, LimitMemory, Move, decide_limit
from kvtide_operator.autoscale.fleet import STALE_AFTER_S
from kvtide_operator.autoscale.policy import targets_of
from kvtide_operator.autoscale.stretch import Stretch
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
        workers.append(_remember(pod.name, sample.state, decided))
    return Limits(tuple(pushes), tuple(workers), tuple(events))


def _memory(before: WorkerStatus | None) -> LimitMemory | None:
    if before is None:
        return None
    kept = before.limit_stretch
    return LimitMemory(
        started_at=before.started_at,
        changed_at=seconds(before.limit_changed_at) if before.limit_changed_at else None,
        lowered_at=seconds(before.limit_lowered_at) if before.limit_lowered_at else None,
        stretch=_stretch(kept) if kept else None,
        crowded=before.crowded_utilization,
    )


def _stretch(kept: LimitStretch) -> Stretch:
    began = seconds(kept.began)
    return Stretch(began, kept.looks, kept.running, kept.utilization, kept.generated_tokens, kept.preemptions)


def _remember(name: str, state: WorkerState, decided: LimitDecision) -> WorkerStatus:
    memory = decided.memory
    stretch = memory.stretch
    return WorkerStatus(
        name=name,
        started_at=state.started_at,
        batch_limit=decided.limit,
        live_tokens=state.kv.live_tokens,
        waiting=state.requests.waiting,
        preemptions=state.counters.preemptions,
        limit_changed_at=timestamp(memory.changed_at) if memory.changed_at is not None else None,
        limit_lowered_at=timestamp(memory.lowered_at) if memory.lowered_at is not None else None,
        limit_stretch=_kept(stretch) if stretch else None,
        crowded_utilization=round(memory.crowded, 3) if memory.crowded is not None else None,
    )


def _kept(stretch: Stretch) -> LimitStretch:
    return LimitStretch(
        began=timestamp(stretch.began),
        looks=stretch.looks,
        running=round(stretch.running, 2),
        utilization=round(stretch.utilization, 3),
        generated_tokens=stretch.generated,
        preemptions=stretch.preemptions,
    )
