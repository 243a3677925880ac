"""Reads everything that one pass looks at, as much of it at once as can be."""

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
from kvtide_operator.edge.prober import Prober
from kvtide_operator.edge.references import ReferenceReader
from kvtide_operator.edge.worker_client import WorkerClient
from kvtide_operator.reconcile.observed import Observed
from kvtide_operator.reconcile.pods import PodView

ENDED = ("Failed", "Succeeded")


class Observer:
    """Remembers of a resource which children it had, and when its workers last answered."""

    def __init__(self, kube: Kube, workers: WorkerClient) -> None:
        self._kube = kube
        self._workers = workers
        self._prober = Prober(workers)
        self._references = ReferenceReader(kube)
        self._children: dict[str, frozenset[tuple[str, str]]] = {}

    async def observe(self, resource: LLMDeployment) -> Observed:
        """What belongs to the resource right now. Raises ApiError where the API server does not say."""
        wanted = child_names(resource)
        references = await self._references.read(resource)
        pods, inspector, *found = await asyncio.gather(
            self._kube.list_all("Pod", resource.namespace, worker_selector(resource.name)),
            self._some(resource, "Pod", inspect_name(resource)),
            *(self._some(resource, kind, name) for kind, name in wanted),
        )
        children = {key: live[0] for key, live in zip(wanted, found, strict=True) if live}
        present = frozenset(key for key, live in children.items() if owned_by(live, resource))
        lost = self._children.get(resource.uid, present) - frozenset(children)
        self._children[resource.uid] = present
        if inspector:
            children["Pod", inspect_name(resource)] = inspector[0]
        seen = Observed(
            resource=resource,
            children=children,
            # An evicted pod stays as a record for people to read; its ReplicaSet has replaced it.
            workers=tuple(PodView.parse(pod) for pod in pods if pod.get("status", {}).get("phase") not in ENDED),
            inspector=PodView.parse(inspector[0]) if inspector and owned_by(inspector[0], resource) else None,
            references=references,
            lost=lost,
        )
        return await self._ask_workers(seen)

    def forget(self, namespace: str, name: str, uid: str) -> None:
        """Drops what is remembered of a resource that is gone."""
        self._prober.forget((namespace, name))
        self._children.pop(uid, None)

    async def close(self) -> None:
        """Ends what is still being asked."""
        await self._prober.close()

    async def _ask_workers(self, seen: Observed) -> Observed:
        resource = seen.resource
        token = token_of(seen.child("Secret", admin_secret_name(resource)))
        samples = await self._workers.samples(seen.ready, token) if token is not None else {}
        answers = await self._prober.answers(
            (resource.namespace, resource.name),
            resource.served_name,
            await self._references.api_key(resource),
            seen.ready,
            samples,
            {worker.name: worker.started_at for worker in resource.status.workers or [] if worker.answers},
        )
        return replace(seen, samples=samples, answers=answers)

    async def _some(self, resource: LLMDeployment, kind: str, name: str) -> list[Json]:
        """The object in a list, empty where there is none: `gather` keeps one type for all."""
        live = await self._kube.get(kind, resource.namespace, name)
        return [] if live is None else [live]
