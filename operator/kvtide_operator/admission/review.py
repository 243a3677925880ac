"""From a request, and what is known beside it, to the answer. Pure, and by the same functions as a pass."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pydantic

from kvtide_operator.admission.forecast import forecast
from kvtide_operator.admission.request import Answer, Request
from kvtide_operator.api.conditions import Reason
from kvtide_operator.api.resource import LLMDeployment
from kvtide_operator.children.worker_template import plan_name
from kvtide_operator.reconcile.observed import Observed, Surroundings
from kvtide_operator.reconcile.planning import plan_workers

ADMITTED = Answer(allowed=True)
UNKNOWN_MODEL = (
    "the model's headers are read first: whether it fits then stands in the condition Planned,"
    " and what it will hold in status.plan"
)
# A node that is not there yet, or not labelled yet, may come: nothing is known to be impossible.
_NOT_YET = (Reason.NO_DEVICE, Reason.DEVICE_MEMORY_UNKNOWN)


@dataclass(frozen=True)
class Known:
    """What the cluster holds beside the request.

    plan_config_map: the live ConfigMap NAME-plan, which has the model's shape if it was read before
    surroundings:    what a pass would be told, of which planning takes the nodes and the measured overheads
    """

    surroundings: Surroundings
    plan_config_map: Mapping[str, Any] | None = None


def review(request: Request, known: Known) -> Answer:
    """Refuses what a pass would not plan, in its words; warns of what the plan gives.

    What keeps the workers as they are is always admitted: a resource that no longer fits, because the planner or the
    nodes have changed, must still be scaled and labelled.
    """
    if request.keeps_intent:
        return ADMITTED
    try:
        resource = request.resource()
    except pydantic.ValidationError as error:
        return Answer(False, Reason.INVALID_SPEC, str(error))
    planning = plan_workers(observed(resource, known.plan_config_map), known.surroundings, now=0.0)
    if planning.reason is Reason.INSPECTING_MODEL:
        return Answer(True, warnings=(UNKNOWN_MODEL,))
    if planning.reason in _NOT_YET:
        return Answer(True, warnings=(planning.message,))
    if planning.planned is None:
        return Answer(False, planning.reason, planning.message)
    return Answer(True, warnings=forecast(planning.planned.plan))


def observed(resource: LLMDeployment, plan_config_map: Mapping[str, Any] | None) -> Observed:
    """The resource as a pass would see it, as far as planning looks."""
    return Observed(resource, {("ConfigMap", plan_name(resource)): plan_config_map} if plan_config_map else {})
