"""Reads what is known beside a request, when it is asked."""

import pydantic

from kvtide_operator.admission.request import Request
from kvtide_operator.admission.review import Known
from kvtide_operator.children.worker_template import plan_name
from kvtide_operator.edge.kube import Kube


async def look(kube: Kube, request: Request) -> Known:
    """What the cluster holds for this resource. Raises ApiError where the API server does not say."""
    if request.keeps_intent or request.old is None:
        # A new resource has nothing yet; what a deleted one of its name left belongs to that one.
        return Known()
    try:
        resource = request.resource()
    except pydantic.ValidationError:
        return Known()
    return Known(await kube.get("ConfigMap", resource.namespace, plan_name(resource)))
