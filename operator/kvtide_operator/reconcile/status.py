"""The status of one pass, and what becomes of it when a child was refused or the pass itself failed."""

from collections.abc import Mapping

from kvtide_operator.api.conditions import Condition, ConditionType, Reason
from kvtide_operator.api.names import worker_selector
from kvtide_operator.api.plan import Plan
from kvtide_operator.api.status import (
    AutoscalingStatus,
    KVStatus,
    MeasuredMemory,
    MemoryStatus,
    PrecisionStatus,
    PredictedMemory,
    RequestsStatus,
    Status,
    WorkerStatus,
)
from kvtide_operator.autoscale.worker_state import WorkerState
from kvtide_operator.reconcile.conditions import degraded, stamp
from kvtide_operator.reconcile.memory import used_bytes
from kvtide_operator.reconcile.observed import Observed
from kvtide_operator.reconcile.pods import Trouble
from kvtide_operator.reconcile.workers import Workforce


def measured_memory(observed: Observed, intent: str | None) -> dict[str, MeasuredMemory]:
    """What the ready workers of this intent measure, by pod."""
    return {
        pod.name: observed.samples[pod.name].state.memory.measured
        for pod in observed.ready
        if pod.intent == intent and pod.name in observed.samples
    }


def ready_states(observed: Observed) -> list[WorkerState]:
    """The states of ready workers that answered."""
    return [observed.samples[pod.name].state for pod in observed.ready if pod.name in observed.samples]


def _kv(states: list[WorkerState]) -> KVStatus | None:
    if not states:
        return None
    capacity = sum(state.kv.capacity_tokens for state in states)
    used = sum(state.kv.utilization * state.kv.capacity_tokens for state in states) / capacity
    return KVStatus(
        capacity_tokens=capacity,
        live_tokens=sum(state.kv.live_tokens for state in states),
        utilization=round(used, 4),
        utilization_percent=round(100 * used),
        precision_in_force=", ".join(sorted({state.kv.precision for state in states if state.kv.precision})) or None,
    )


def _requests(states: list[WorkerState]) -> RequestsStatus | None:
    if not states:
        return None
    return RequestsStatus(
        running=sum(state.requests.running for state in states),
        waiting=sum(state.requests.waiting for state in states),
    )


def build_status(
    observed: Observed,
    plan: Plan | None,
    measured: Mapping[str, MeasuredMemory],
    force: Workforce,
    autoscaling: AutoscalingStatus,
    workers: tuple[WorkerStatus, ...],
    precision: PrecisionStatus | None,
    conditions: list[Condition],
) -> Status:
    """The status of this pass."""
    states = ready_states(observed)
    memory = MemoryStatus(
        predicted=PredictedMemory.model_validate(plan.memory.to_json()) if plan else None,
        measured=max(measured.values(), key=lambda memory: used_bytes(memory) or 0, default=None),
    )
    return Status(
        observed_generation=observed.resource.generation,
        replicas=len(observed.workers),
        ready_replicas=force.ready,
        selector=worker_selector(observed.resource.name),
        plan=plan,
        memory=memory if plan or memory.measured else None,
        kv=_kv(states),
        kv_precision=precision,
        requests=_requests(states),
        batch_limit=min((worker.batch_limit for worker in workers), default=None),
        workers=list(workers) or None,
        autoscaling=autoscaling,
        conditions=conditions,
    )


def with_troubles(
    status: Status, previous: Status, generation: int, troubles: tuple[Trouble, ...], now: float
) -> Status:
    """The status with what went wrong while the actions were carried out put before all other troubles."""
    if not troubles:
        return status
    conditions = list(status.conditions or [])
    known = next((c for c in conditions if c.type is ConditionType.DEGRADED and c.status == "True"), None)
    # A reason of a later version, read by this one, has a message all the same; its own pass will say it anew.
    if known is not None and known.reason in set(Reason):
        troubles = (*troubles, Trouble(Reason(known.reason), known.message))
    judged = stamp([degraded(troubles)], list(previous.conditions or []), generation, now)
    others = [c for c in conditions if c.type is not ConditionType.DEGRADED]
    return status.model_copy(update={"conditions": others + judged})
