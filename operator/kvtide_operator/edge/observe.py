"""Puts together what one pass looks at: the cluster from memory, the workers by asking them."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace

from kvtide_operator.api.resource import LLMDeployment
from kvtide_operator.children.inspect_pod import inspect_name
from kvtide_operator.children.inventory import child_names
from kvtide_operator.children.manifest import Manifest, owned_by
from kvtide_operator.children.secret import token_of
from kvtide_operator.children.worker_template import admin_secret_name
from kvtide_operator.edge.cluster import Cluster
from kvtide_operator.edge.kube import Json, Kube
from kvtide_operator.edge.prober import Prober
from kvtide_operator.edge.references import ReferenceReader
from kvtide_operator.edge.sampler import Sampler
from kvtide_operator.edge.store import Key
from kvtide_operator.edge.worker_client import WorkerClient
from kvtide_operator.reconcile.observed import Observed


class Observer:
    """Remembers of a resource which children it had, and when its workers last answered."""

    def __init__(self, kube: Kube, cluster: Cluster, workers: WorkerClient, sampler: Sampler) -> None:
        self._kube = kube
        self._cluster = cluster
        self._sampler = sampler
        self._prober = Prober(workers)
        self._references = ReferenceReader(kube)
        self._children: dict[str, frozenset[tuple[str, str]]] = {}

    async def observe(self, resource: LLMDeployment) -> Observed:
        """What belongs to the resource right now. Raises ApiError where the API server does not say."""
        references = await self._references.read(resource)
        children: dict[tuple[str, str], Json] = {}
        for kind, name in child_names(resource):
            live = self._cluster.get(kind, resource.namespace, name)
            if live is not None:
                children[kind, name] = live
        present = frozenset(key for key, live in children.items() if owned_by(live, resource))
        lost = self._children.get(resource.uid, present) - frozenset(children)
        self._children[resource.uid] = present
        pods = list(self._cluster.pods((resource.namespace, resource.name)))
        inspector = next((pod for pod in pods if pod.view.name == inspect_name(resource)), None)
        if inspector is not None:
            children["Pod", inspector.view.name] = inspector.as_child()
        seen = Observed(
            resource=resource,
            children=children,
            workers=tuple(pod.view for pod in pods if pod.worker and not pod.ended),
            inspector=inspector.view if inspector is not None and resource.uid in inspector.owners else None,
            references=references,
            lost=lost,
        )
        return await self._ask_workers(seen)

    async def strangers(self, observed: Observed, wanted: Iterable[Manifest]) -> Observed | None:
        """With what stands where children are to be made, and does not look like ours; None where nothing does.

        Only what carries our labels is in memory, and what is another's must not be written over.
        """
        keys = [(manifest["kind"], manifest["metadata"]["name"]) for manifest in wanted]
        unseen = [key for key in keys if key not in observed.children]
        live = await asyncio.gather(*(self._kube.get(kind, observed.resource.namespace, name) for kind, name in unseen))
        found = {key: one for key, one in zip(unseen, live, strict=True) if one is not None}
        return replace(observed, children={**observed.children, **found}) if found else None

    def forget(self, resource: Key, uid: str) -> None:
        """Drops what is remembered of a resource that is gone."""
        self._prober.forget(resource)
        self._sampler.forget(resource)
        self._children.pop(uid, None)

    async def close(self) -> None:
        """Ends what is still being asked."""
        await self._prober.close()

    async def _ask_workers(self, seen: Observed) -> Observed:
        resource = seen.resource
        key = (resource.namespace, resource.name)
        token = token_of(seen.child("Secret", admin_secret_name(resource)))
        samples = await self._sampler.samples(key, seen.ready, token) if token is not None else {}
        answers = await self._prober.answers(
            key,
            resource.served_name,
            await self._references.api_key(resource),
            seen.ready,
            samples,
            {worker.name: worker.started_at for worker in resource.status.workers or [] if worker.answers},
        )
        return replace(seen, samples=samples, answers=answers)
