"""What the status says when there was no pass: of a resource that cannot be read, and of a pass that failed."""

from kvtide_operator.api.conditions import ConditionType, Reason
from kvtide_operator.api.resource import LLMDeployment
from kvtide_operator.api.status import Status
from kvtide_operator.reconcile.conditions import Verdict, stamp
from kvtide_operator.reconcile.pods import Trouble
from kvtide_operator.reconcile.status import with_troubles


def failed_pass(resource: LLMDeployment, error: Exception, now: float) -> Status:
    """The last status with Degraded: the rest of it was true when it could last be judged."""
    trouble = Trouble(Reason.RECONCILE_FAILED, f"the last pass failed: {type(error).__name__}: {error}")
    # What the pass before failed of is not said again: passes that fail alike write nothing.
    others = [each for each in resource.status.conditions or [] if each.reason != Reason.RECONCILE_FAILED]
    last = resource.status.model_copy(update={"conditions": others})
    return with_troubles(last, resource.status, resource.generation, (trouble,), now)


def unreadable_spec(previous: Status, generation: int, error: Exception, now: float) -> Status:
    """The last status with Planned=False: an older CRD may let through what this version cannot read."""
    verdict = Verdict(ConditionType.PLANNED, "False", Reason.INVALID_SPEC, str(error))
    before = list(previous.conditions or [])
    others = [condition for condition in before if condition.type is not ConditionType.PLANNED]
    judged = stamp([verdict], before, generation, now)
    return previous.model_copy(update={"conditions": judged + others, "observed_generation": generation})
