"""Reads what is known beside a request, when it is asked."""

import pydantic

from kvtide_operator.admission.request import Request
from kvtide_operator.admission.review import Known
from kvtide_operator.children.worker_template import plan_name
from kvtide_operator.edge.kube import Kube
from kvtide_operator.edge.nodes import Nodes
from kvtide_operator.plan.device import needs_nodes


async def look(kube: Kube, nodes: Nodes, request: Request) -> Known:
    """What the cluster holds for this resource. Raises ApiError where the API server does not say."""
    if request.keeps_intent:
        return Known()
    try:
        resource = request.resource()
    except pydantic.ValidationError:
        return Known()
    listed = await nodes.read() if needs_nodes(resource.spec) else None
    if request.old is None:
        # A new resource has nothing yet; what a deleted one of its name left belongs to that one.
        return Known(nodes=listed)
    return Known(await kube.get("ConfigMap", resource.namespace, plan_name(resource)), listed)
