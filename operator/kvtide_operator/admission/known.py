"""Reads what is known beside a request, when it is asked."""

from dataclasses import replace

import pydantic

from kvtide_operator.admission.request import Request
from kvtide_operator.admission.review import Known, observed
from kvtide_operator.children.worker_template import plan_name
from kvtide_operator.edge.kube import Kube
from kvtide_operator.edge.nodes import Nodes
from kvtide_operator.edge.overheads import OverheadStore
from kvtide_operator.reconcile.observed import Surroundings
from kvtide_operator.reconcile.planning import wants_nodes
from kvtide_operator.settings import OperatorSettings


class Sources:
    """The API server's objects that a plan rests on. Nodes and measured overheads are up to half a minute old."""

    def __init__(self, kube: Kube, settings: OperatorSettings) -> None:
        self._kube = kube
        self._nodes = Nodes(kube)
        self._overheads = OverheadStore(kube, settings.operator_namespace, settings.overheads_name)
        # Nothing is made of what is planned here, so no token is needed.
        self._bare = Surroundings(settings.worker_image, settings.operator_namespace, fresh_token="")

    async def look(self, request: Request) -> Known:
        """What is known for this request. Raises ApiError where the API server does not say."""
        if request.keeps_intent:
            return Known(self._bare)
        try:
            resource = request.resource()
        except pydantic.ValidationError:
            return Known(self._bare)
        config_map = None
        # A new resource has nothing yet; what a deleted one of its name left belongs to that one.
        if request.old is not None:
            config_map = await self._kube.get("ConfigMap", resource.namespace, plan_name(resource))
        nodes = await self._nodes.read() if wants_nodes(observed(resource, config_map)) else None
        overheads = await self._overheads.read()
        return Known(replace(self._bare, nodes=nodes, overheads=overheads), config_map)
