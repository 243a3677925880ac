"""The cluster as a pass sees it: reads from memory, which watches keep up to date, and writes that are seen at once."""

import asyncio
import functools
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from kvtide_operator.api import names
from kvtide_operator.children.manifest import Manifest
from kvtide_operator.edge.kube import Json, Kube
from kvtide_operator.edge.reflector import Reflector, Wake
from kvtide_operator.edge.store import Key, Store
from kvtide_operator.reconcile.pods import PodView

# What is watched of children: those that carry our labels. Kopf watches the resources themselves.
OURS = f"app.kubernetes.io/part-of={names.PART_OF},{names.NAME_LABEL}"
CHILD_KINDS = ("Deployment", "Service", "Secret", "ConfigMap", "PodDisruptionBudget", "NetworkPolicy")

_METADATA = (
    "namespace",
    "name",
    "uid",
    "generation",
    "labels",
    "annotations",
    "ownerReferences",
    "creationTimestamp",
    "deletionTimestamp",
)
# Of who wrote to an object nothing but the fields themselves, which are most of it.
_WRITER = ("manager", "subresource", "time")
ENDED = ("Failed", "Succeeded")


@dataclass(frozen=True, slots=True)
class Pod:
    """What is kept of a pod: the decisions' view of it, and whose it is.

    worker: it carries the labels of a worker, in contrast to the pod that inspects a model
    ended:  it has run to its end, or was evicted: it stays as a record for people to read
    """

    view: PodView
    worker: bool
    ended: bool
    owners: tuple[str, ...]

    @classmethod
    def read(cls, thing: Json) -> "Pod":
        """From the API server's JSON."""
        metadata = thing["metadata"]
        return cls(
            view=PodView.parse(thing),
            worker=(metadata.get("labels") or {}).get("app.kubernetes.io/name") == names.WORKER_APP,
            ended=(thing.get("status") or {}).get("phase") in ENDED,
            owners=tuple(owner["uid"] for owner in metadata.get("ownerReferences") or []),
        )

    def as_child(self) -> Manifest:
        """As much of its manifest as tells whose it is."""
        return {"metadata": {"name": self.view.name, "ownerReferences": [{"uid": uid} for uid in self.owners]}}


def compact(thing: Json) -> bytes:
    """What passes read of an object, as JSON: a fifth of what it takes as objects of Python."""
    metadata = {key: thing["metadata"][key] for key in _METADATA if key in thing["metadata"]}
    kept = {**{key: part for key, part in thing.items() if key != "status"}, "metadata": metadata}
    if thing["kind"] == names.KIND:
        kept["status"] = thing.get("status")
    else:
        writers = thing["metadata"].get("managedFields") or []
        metadata["managedFields"] = [{key: one[key] for key in _WRITER if key in one} for one in writers]
    if thing["kind"] == "Deployment":
        kept["status"] = {"conditions": _lasting((thing.get("status") or {}).get("conditions") or [])}
    return json.dumps(kept, separators=(",", ":")).encode()


def _lasting(conditions: Iterable[Json]) -> list[Json]:
    """The conditions but for what changes with every pod that starts."""
    return [
        {key: said for key, said in one.items() if key != "lastUpdateTime"}
        for one in conditions
        if one["type"] == "ReplicaFailure"
    ]


class Cluster:
    """Reads are from memory and never wait; writes go to the API server, and what they answer is in memory at once.

    wake: called with each LLMDeployment of which a child has changed
    """

    def __init__(self, kube: Kube, namespaces: tuple[str, ...], wake: Wake) -> None:
        self._kube = kube
        self._objects: dict[str, Store[bytes]] = {kind: Store(compact) for kind in (names.KIND, *CHILD_KINDS)}
        self._pods: Store[Pod] = Store(Pod.read)
        stores: dict[str, Store[Any]] = {**self._objects, "Pod": self._pods}
        self.reflectors = [
            Reflector(kube, kind, namespace, OURS, stores[kind], wake)
            for kind in (*CHILD_KINDS, "Pod")
            for namespace in namespaces or (None,)
        ]

    async def run(self) -> None:
        """Follows the children until cancelled."""
        async with asyncio.TaskGroup() as group:
            for reflector in self.reflectors:
                group.create_task(reflector.run())

    async def synced(self) -> None:
        """Waits until everything was listed."""
        for reflector in self.reflectors:
            await reflector.synced.wait()

    def heard_at(self, kind: str) -> float:
        """When the API server last said anything of a kind, in the namespace that was silent for longest."""
        return min(one.heard_at for one in self.reflectors if one.kind == kind)

    @property
    def resources(self) -> Store[bytes]:
        """The LLMDeployments, which Kopf's events feed."""
        return self._objects[names.KIND]

    def get(self, kind: str, namespace: str, name: str) -> Json | None:
        """An LLMDeployment or a child of one, None where there is none with our labels."""
        kept = self._objects[kind].get((namespace, name))
        return None if kept is None else json.loads(kept)

    def pods(self, owner: Key) -> Iterator[Pod]:
        """The pods of one LLMDeployment, by name."""
        return self._pods.owned_by(owner)

    async def apply(self, manifest: Json, subresource: str = "") -> None:
        """As `Kube.apply`."""
        await self._write(manifest["kind"], functools.partial(self._kube.apply, manifest, subresource))

    async def merge(self, kind: str, namespace: str, name: str, change: Json) -> None:
        """As `Kube.merge`."""
        await self._write(kind, functools.partial(self._kube.merge, kind, namespace, name, change))

    async def create(self, manifest: Json) -> None:
        """As `Kube.create`."""
        await self._write(manifest["kind"], functools.partial(self._kube.create, manifest))

    async def delete(self, kind: str, namespace: str, name: str) -> None:
        """As `Kube.delete`."""
        left = await self._kube.delete(kind, namespace, name)
        if left is None:
            self._store(kind).deleted((namespace, name))
        else:
            self._store(kind).wrote(left)

    async def _write(self, kind: str, writing: Callable[[], Awaitable[Json]]) -> None:
        self._store(kind).wrote(await writing())

    def _store(self, kind: str) -> Store[Any]:
        return self._pods if kind == "Pod" else self._objects[kind]
