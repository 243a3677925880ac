"""This pass's KV precision: carries what is seen into the deciding function, and what it remembers into the status."""

from dataclasses import dataclass

from kvtide_operator.api.conditions import Reason
from kvtide_operator.api.plan import Plan
from kvtide_operator.api.spec import AutoscalingMode, Precision
from kvtide_operator.api.status import PrecisionStatus
from kvtide_operator.autoscale.fleet import STALE_AFTER_S
from kvtide_operator.autoscale.precision import Lever, PrecisionDecision, Pressure, decide_precision
from kvtide_operator.autoscale.replicas import Decision
from kvtide_operator.autoscale.worker_state import WorkerState
from kvtide_operator.reconcile.actions import Event, PrecisionPush
from kvtide_operator.reconcile.observed import Observed
from kvtide_operator.reconcile.pods import seconds, timestamp

# Replicas are wanted that are not to be had: by the user's bound, or for want of a place.
_PRESSED = (Reason.AT_MAX_REPLICAS, Reason.REPLICAS_STUCK)


@dataclass(frozen=True)
class PrecisionMove:
    """What to push, what to remember, what to tell. `asked` is what workers are to store, None for the plan's."""

    pushes: tuple[PrecisionPush, ...] = ()
    status: PrecisionStatus | None = None
    events: tuple[Event, ...] = ()

    @property
    def asked(self) -> str | None:
        return self.status.asked if self.status else None


def move_precision(observed: Observed, plan: Plan | None, intent: str, decision: Decision, now: float) -> PrecisionMove:
    """Decides what the pools of the ready workers of this plan are stored in.

    Only where the user leaves the precision to the plan and the replicas to the operator; elsewhere whatever was asked
    before is forgotten, and a worker keeps what it has until it starts again.
    """
    spec = observed.resource.spec
    active = spec.autoscaling.mode is AutoscalingMode.ACTIVE and spec.kv_cache.precision is Precision.AUTO
    if plan is None or not active:
        return PrecisionMove()
    before = _lever(observed.resource.status.kv_precision)
    workers = _workers(observed, intent)
    window_s = float(spec.autoscaling.scale_down_stabilization_seconds)
    decided = decide_precision(
        workers, plan.kv.precision, _pressure(observed, plan, decision, len(workers)), before, window_s, now
    )
    ips = {pod.name: pod.ip for pod in observed.ready}
    pushes = tuple(
        PrecisionPush(name, ip, precision) for name, precision in decided.pushes.items() if (ip := ips.get(name))
    )
    reason = Reason.KV_REENCODED if decided.lever.asked else Reason.KV_AS_PLANNED
    events = (Event("Normal", reason, decided.message),) if decided.moved else ()
    return PrecisionMove(pushes, _status(decided, reason), events)


def _workers(observed: Observed, intent: str) -> list[tuple[str, WorkerState]]:
    """Those that serve what was planned: where a fallback was needed, nothing smaller will do either."""
    found = []
    for pod in sorted(observed.ready, key=lambda pod: pod.name):
        sample = observed.samples.get(pod.name)
        if (
            pod.intent == intent
            and sample is not None
            and sample.age_s <= STALE_AFTER_S
            and not sample.state.kv.fallback
        ):
            found.append((pod.name, sample.state))
    return found


def _pressure(observed: Observed, plan: Plan, decision: Decision, workers: int) -> Pressure:
    if decision.held or decision.load is None:
        return Pressure(pressed=False, calm=False, why=decision.message)
    bounds, demand = observed.resource.spec.autoscaling, decision.load.demand
    held = sum(one.state.kv.capacity_tokens for one in decision.fleet.workers if one.state is not None)
    # More room for KV helps nobody who waits for computing.
    pressed = decision.reason in _PRESSED and demand > bounds.scale_up_utilization * held
    calm = not pressed and demand <= bounds.scale_down_utilization * plan.kv.capacity_tokens * workers
    return Pressure(pressed, calm, decision.message)


def _lever(status: PrecisionStatus | None) -> Lever:
    if status is None:
        return Lever()
    return Lever(
        asked=status.asked,
        changed_at=seconds(status.changed_at) if status.changed_at else None,
        calm_since=seconds(status.calm_since) if status.calm_since else None,
    )


def _status(decided: PrecisionDecision, reason: Reason) -> PrecisionStatus | None:
    """Nothing is said of a lever that was never moved."""
    lever = decided.lever
    if lever.asked is None and lever.changed_at is None:
        return None
    return PrecisionStatus(
        asked=lever.asked,
        reason=reason,
        message=decided.message,
        kld=decided.cost[0] if decided.cost else None,
        kld_limit=decided.cost[1] if decided.cost else None,
        changed_at=timestamp(lever.changed_at) if lever.changed_at is not None else None,
        calm_since=timestamp(lever.calm_since) if lever.calm_since is not None else None,
    )
