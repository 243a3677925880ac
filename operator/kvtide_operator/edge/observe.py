"""Reads everything that one pass looks at, all at once."""

import asyncio
from dataclasses import replace

from kvtide_operator.api.names import worker_selector
from kvtide_operator.api.resource import LLMDeployment
from kvtide_operator.children.inspect_pod import inspect_name
from kvtide_operator.children.inventory import child_names
from kvtide_operator.children.manifest import owned_by
from kvtide_operator.children.secret import token_of
from kvtide_operator.children.worker_template import admin_secret_name
from kvtide_operator.edge.kube import Json, Kube
from kvtide_operator.edge.worker_client import WorkerClient
from kvtide_operator.reconcile.observed import Observed
from kvtide_operator.reconcile.pods import PodView

ENDED = ("Failed", "Succeeded")


async def observe(kube: Kube, workers: WorkerClient, resource: LLMDeployment) -> Observed:
    """What belongs to the resource right now. Raises ApiError where the API server does not say."""
    wanted = child_names(resource)
    pods, inspector, *found = await asyncio.gather(
        kube.list_all("Pod", resource.namespace, worker_selector(resource.name)),
        _some(kube, resource, "Pod", inspect_name(resource)),
        *(_some(kube, resource, kind, name) for kind, name in wanted),
    )
    children = {key: live[0] for key, live in zip(wanted, found, strict=True) if live}
    if inspector:
        children["Pod", inspect_name(resource)] = inspector[0]
    seen = Observed(
        resource=resource,
        children=children,
        # An evicted pod stays as a record for people to read; its ReplicaSet has replaced it.
        workers=tuple(PodView.parse(pod) for pod in pods if pod.get("status", {}).get("phase") not in ENDED),
        inspector=PodView.parse(inspector[0]) if inspector and owned_by(inspector[0], resource) else None,
    )
    token = token_of(children.get(("Secret", admin_secret_name(resource))))
    if token is None:
        return seen
    return replace(seen, samples=await workers.samples(seen.ready, token))


async def _some(kube: Kube, resource: LLMDeployment, kind: str, name: str) -> list[Json]:
    """The object in a list, empty where there is none: `gather` keeps one type for all."""
    live = await kube.get(kind, resource.namespace, name)
    return [] if live is None else [live]
