"""Keeps measured overheads in a ConfigMap beside the Lease. They are advice: where it fails, the pass goes on."""

import json
import logging

from kvtide_operator.api import names
from kvtide_operator.edge.kept import Kept
from kvtide_operator.edge.kube import ApiError, Json, Kube
from kvtide_operator.plan.overheads import Overheads, read_overheads

logger = logging.getLogger(__name__)

# Only the holder of the Lease writes it; another writer is a person.
KEPT_S = 30.0


class OverheadStore:
    """The ConfigMap, as last read or written."""

    def __init__(self, kube: Kube, namespace: str, name: str) -> None:
        self._kube = kube
        self._namespace = namespace
        self._name = name
        self._kept: Kept[Overheads] = Kept(self._fetch, KEPT_S)

    async def read(self) -> Overheads | None:
        """What is remembered, or was when it could last be read.

        None where it never could: then nothing may be learned over it either.
        """
        try:
            return await self._kept.get()
        except ApiError as error:
            self._say(error)
            return self._kept.last

    async def write(self, learned: Overheads) -> None:
        """Remembers these entries, each by itself: the others are left as they are."""
        data = {key: json.dumps(entry.to_json()) for key, entry in learned.items()}
        try:
            await self._merge_or_create(data)
        except ApiError as error:
            self._say(error)
            return
        self._kept.amend({**(self._kept.last or {}), **learned})

    async def _fetch(self) -> Overheads:
        return read_overheads(await self._kube.get("ConfigMap", self._namespace, self._name))

    async def _merge_or_create(self, data: dict[str, str]) -> None:
        try:
            await self._kube.merge("ConfigMap", self._namespace, self._name, {"data": data})
        except ApiError as error:
            if error.status != 404:
                raise
            await self._kube.create(self._manifest(data))

    def _say(self, error: ApiError) -> None:
        logger.warning("measured overheads of %s/%s: %s", self._namespace, self._name, error)

    def _manifest(self, data: dict[str, str]) -> Json:
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": self._name,
                "namespace": self._namespace,
                "labels": {"app.kubernetes.io/part-of": names.PART_OF},
            },
            "data": data,
        }
