"""An API server in memory: objects with versions, lists, watches that tell every change, and the ways these break."""

import asyncio
import copy
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from kvtide_operator.api import names
from kvtide_operator.edge.kube import ApiError

Json = dict[str, Any]
Name = tuple[str, str, str]  # kind, namespace, name
ApiVersions = {names.KIND: names.API_VERSION, "Deployment": "apps/v1"}


@dataclass
class ApiServer:
    """Speaks as `Kube` does.

    lists:   every list that was asked for, by kind; gets: every object
    refused: kinds that may not be listed
    """

    objects: dict[Name, Json] = field(default_factory=dict)
    lists_asked: list[str] = field(default_factory=list)
    gets_asked: list[Name] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)
    revision: int = 100
    page: int = 2
    _log: list[tuple[int, str, str, Json]] = field(default_factory=list)
    _oldest: int = 0
    _cuts: int = 0
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    # What happens in the cluster.

    def keep(self, manifest: Json) -> Json:
        """Makes or replaces an object, as somebody else would."""
        name = name_of(manifest)
        before = self.objects.get(name)
        self.revision += 1
        thing = {"apiVersion": ApiVersions.get(name[0], "v1"), **copy.deepcopy(manifest)}
        metadata = thing["metadata"]
        metadata.setdefault("uid", before["metadata"]["uid"] if before else f"uid-{self.revision}")
        metadata.setdefault("creationTimestamp", "2026-01-01T00:00:00Z")
        metadata["resourceVersion"] = str(self.revision)
        self.objects[name] = thing
        self._tell("MODIFIED" if before else "ADDED", thing)
        return copy.deepcopy(thing)

    def drop(self, kind: str, namespace: str, name: str) -> None:
        """Deletes an object at once."""
        thing = self.objects.pop((kind, namespace, name), None)
        if thing is not None:
            self.revision += 1
            thing["metadata"]["resourceVersion"] = str(self.revision)
            self._tell("DELETED", thing)

    def bookmark(self, kind: str) -> None:
        """Tells watches of a kind how far they have come."""
        self._tell("BOOKMARK", {"kind": kind, "metadata": {"resourceVersion": str(self.revision)}})

    def cut(self) -> None:
        """Breaks every watch."""
        self._cuts += 1
        self._wake()

    def forget_history(self) -> None:
        """No watch can begin before now any more."""
        self._oldest = self.revision
        self.cut()

    # What clients ask.

    async def get(self, kind: str, namespace: str, name: str) -> Json | None:
        self.gets_asked.append((kind, namespace, name))
        return copy.deepcopy(self.objects.get((kind, namespace, name)))

    async def lists(
        self, kind: str, namespace: str | None, selector: str = "", accept: str = "application/json"
    ) -> AsyncIterator[Json]:
        self.lists_asked.append(kind)
        if kind in self.refused:
            raise ApiError(403, f"{kind} is forbidden")
        found = [
            copy.deepcopy(thing)
            for name, thing in self.objects.items()
            if name[0] == kind and namespace in (None, name[1]) and _selected(thing, selector)
        ]
        metadata = {"resourceVersion": str(self.revision)}
        for thing in found:
            thing.pop("kind")
            api_version = thing.pop("apiVersion")
        for begin in range(0, max(1, len(found)), self.page):
            await asyncio.sleep(0)
            items = found[begin : begin + self.page]
            yield {"apiVersion": api_version if items else "v1", "metadata": metadata, "items": items}

    async def pages(self, kind: str, namespace: str | None, selector: str = "") -> AsyncIterator[list[Json]]:
        async for page in self.lists(kind, namespace, selector):
            yield page["items"]

    async def list_all(self, kind: str, namespace: str | None, selector: str = "") -> list[Json]:
        return [item async for page in self.pages(kind, namespace, selector) for item in page]

    async def watch(self, kind: str, namespace: str | None, selector: str, since: str) -> AsyncIterator[Json]:
        if int(since) < self._oldest:
            yield {"type": "ERROR", "object": {"code": 410, "message": "too old resource version"}}
            return
        cuts, position = self._cuts, 0
        while True:
            while self._cuts == cuts and position == len(self._log):
                await self._news.wait()
            if self._cuts != cuts:
                raise ApiError(0, "the connection broke")
            while position < len(self._log):
                revision, of_kind, event, thing = self._log[position]
                position += 1
                here = event == "BOOKMARK" or (
                    namespace in (None, thing["metadata"]["namespace"]) and _selected(thing, selector)
                )
                if revision > int(since) and of_kind == kind and here:
                    yield {"type": event, "object": copy.deepcopy(thing)}

    async def apply(self, manifest: Json, subresource: str = "") -> Json:
        if not subresource:
            return self.keep(manifest)
        return self.keep({**self.objects[name_of(manifest)], "status": manifest["status"]})

    async def create(self, manifest: Json) -> Json:
        if name_of(manifest) in self.objects:
            raise ApiError(409, "exists")
        return self.keep(manifest)

    async def merge(self, kind: str, namespace: str, name: str, change: Json) -> Json:
        before = self.objects.get((kind, namespace, name))
        if before is None:
            raise ApiError(404, "not found")
        return self.keep({**before, "data": {**before.get("data", {}), **change.get("data", {})}})

    async def delete(self, kind: str, namespace: str, name: str) -> Json | None:
        self.drop(kind, namespace, name)
        return None

    def _tell(self, event: str, thing: Json) -> None:
        self._log.append((self.revision, thing["kind"], event, copy.deepcopy(thing)))
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


def name_of(manifest: Json) -> Name:
    """Kind, namespace and name."""
    return manifest["kind"], manifest["metadata"]["namespace"], manifest["metadata"]["name"]


def _selected(thing: Json, selector: str) -> bool:
    return not selector or names.NAME_LABEL in (thing["metadata"].get("labels") or {})
