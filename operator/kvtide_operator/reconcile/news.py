"""What is worth an event: conditions that changed, and replicas that the operator changed."""

from kvtide_operator.api.conditions import Condition, ConditionType, Reason
from kvtide_operator.api.status import ScalingDecision
from kvtide_operator.reconcile.actions import Event

# A condition and the status that a person should be warned of.
_BAD = {
    (ConditionType.PLANNED, "False"),
    (ConditionType.DEGRADED, "True"),
    (ConditionType.MEMORY_WITHIN_PLAN, "False"),
}
_GOOD = {(ConditionType.PLANNED, "True"), (ConditionType.READY, "True")}
_BLIND = (Reason.METRICS_MISSING, Reason.METRICS_STALE, Reason.METRICS_MISLABELLED)


def events(before: list[Condition], after: list[Condition], decision: ScalingDecision | None) -> list[Event]:
    """The events of one pass, from the conditions of the last one to those of this one."""
    known = {condition.type: condition for condition in before}
    found = [
        event
        for condition in after
        if not _same(known.get(condition.type), condition) and (event := _event(condition)) is not None
    ]
    if decision is not None and decision.to_replicas != decision.from_replicas:
        verb = "scaled" if decision.applied else "would scale"
        change = f"{verb} from {decision.from_replicas} to {decision.to_replicas}: {decision.message}"
        found.append(Event("Normal", decision.reason, change))
    return found


def _same(before: Condition | None, after: Condition) -> bool:
    return before is not None and (before.status, before.reason) == (after.status, after.reason)


def _event(condition: Condition) -> Event | None:
    key = (condition.type, condition.status)
    blind = condition.type is ConditionType.SCALING_ACTIVE and condition.reason in _BLIND
    if key in _BAD or blind:
        return Event("Warning", condition.reason, condition.message)
    if key in _GOOD:
        return Event("Normal", str(condition.type), condition.message)
    return None
