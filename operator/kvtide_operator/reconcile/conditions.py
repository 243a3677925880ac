"""All conditions, judged anew on every pass from what is seen. Nothing is ever kept because it was so before."""

from dataclasses import dataclass

from kvtide_operator.api.conditions import Condition, ConditionStatus, ConditionType, Reason
from kvtide_operator.api.spec import AutoscalingMode
from kvtide_operator.autoscale.replicas import Decision
from kvtide_operator.reconcile.planning import Planning
from kvtide_operator.reconcile.pods import Trouble, timestamp
from kvtide_operator.reconcile.workers import Workforce

MESSAGE_LIMIT = 2000


@dataclass(frozen=True)
class Verdict:
    """A condition without its times."""

    type: ConditionType
    status: ConditionStatus
    reason: Reason
    message: str


def planned(planning: Planning) -> Verdict:
    """Whether there is a plan for the spec as it stands."""
    status: ConditionStatus = "True" if planning.planned else "False"
    if planning.reason is Reason.INSPECTING_MODEL:
        status = "Unknown"
    return Verdict(ConditionType.PLANNED, status, planning.reason, planning.message)


def progressing(planning: Planning, force: Workforce) -> Verdict:
    """Whether something is on its way to what is wanted."""
    kind = ConditionType.PROGRESSING
    if planning.reason is Reason.INSPECTING_MODEL:
        return Verdict(kind, "True", planning.reason, planning.message)
    leaving = force.terminating + max(0, force.total - force.desired)
    if leaving:
        return Verdict(kind, "True", Reason.DRAINING, f"{leaving} workers finish their requests and go")
    if not planning.planned:
        return Verdict(kind, "False", Reason.NOT_PLANNED, "nothing is started without a plan")
    if force.complete:
        return Verdict(kind, "False", Reason.STABLE, f"{force.ready} of {force.desired} workers are ready")
    if force.ready > force.current:
        old = force.ready - force.current
        return Verdict(kind, "True", Reason.ROLLING_OUT, f"{old} workers still run an earlier plan")
    return Verdict(kind, "True", Reason.STARTING, f"{force.ready} of {force.desired} workers are ready, the rest start")


def available(force: Workforce) -> Verdict:
    """Whether anybody answers."""
    kind = ConditionType.AVAILABLE
    if force.answering:
        return Verdict(kind, "True", Reason.WORKERS_READY, f"{force.answering} workers answer")
    if force.silent:
        return Verdict(kind, "False", force.silent[0].reason, force.silent[0].message)
    said = f"{force.ready} workers have yet to answer a first request" if force.ready else "no worker is ready"
    return Verdict(kind, "False", Reason.NO_READY_WORKERS, said)


def ready(planning: Planning, force: Workforce) -> Verdict:
    """Whether all that is wanted is there: every worker, of the present plan, ready and seen to answer."""
    kind = ConditionType.READY
    if not planning.planned:
        return Verdict(kind, "False", planning.reason, planning.message)
    if force.desired == 0:
        return Verdict(kind, "False", Reason.SCALED_TO_ZERO, "replicas is 0")
    if force.answering == force.ready == force.current >= force.desired:
        return Verdict(kind, "True", Reason.WORKERS_READY, f"{force.ready} of {force.desired} workers are ready")
    if force.troubles:
        return Verdict(kind, "False", force.troubles[0].reason, force.troubles[0].message)
    reason = Reason.ROLLING_OUT if force.ready > force.current else Reason.STARTING
    if force.ready == force.current >= force.desired:
        unasked = force.ready - force.answering
        return Verdict(kind, "False", reason, f"{unasked} of {force.ready} workers have yet to answer a first request")
    return Verdict(kind, "False", reason, f"{force.current} of {force.desired} workers are ready with the present plan")


def scaling_active(mode: AutoscalingMode, decision: Decision) -> Verdict:
    """Whether the autoscaler can judge, and what it says."""
    kind = ConditionType.SCALING_ACTIVE
    if mode is AutoscalingMode.OFF:
        return Verdict(kind, "False", Reason.MODE_OFF, "autoscaling.mode is Off: replicas follow spec.replicas")
    prefix = "observing only: " if mode is AutoscalingMode.OBSERVE else ""
    status: ConditionStatus = "False" if decision.held else "True"
    return Verdict(kind, status, decision.reason, prefix + decision.message)


def degraded(troubles: tuple[Trouble, ...]) -> Verdict:
    """Whether something is broken that does not mend by waiting. The first trouble gives the reason."""
    kind = ConditionType.DEGRADED
    if not troubles:
        return Verdict(kind, "False", Reason.AS_EXPECTED, "nothing is broken")
    return Verdict(kind, "True", troubles[0].reason, "; ".join(trouble.message for trouble in troubles))


def stamp(verdicts: list[Verdict], previous: list[Condition], generation: int, now: float) -> list[Condition]:
    """Gives verdicts their times: a condition that says the same keeps when it began to."""
    before = {condition.type: condition for condition in previous}

    def since(verdict: Verdict) -> str:
        last = before.get(verdict.type)
        return last.last_transition_time if last and last.status == verdict.status else timestamp(now)

    return [
        Condition(
            type=verdict.type,
            status=verdict.status,
            reason=verdict.reason,
            message=verdict.message[:MESSAGE_LIMIT],
            last_transition_time=since(verdict),
            observed_generation=generation,
        )
        for verdict in verdicts
    ]
