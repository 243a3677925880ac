"""Whether events really arrive. A watch that stalls looks like a quiet cluster.

The watches of children are seen to be well by the API server's bookmarks (edge/reflector.py). That of LLMDeployments
is Kopf's, which keeps bookmarks to itself: what it tells is compared with what a list says, now and then. Nothing is
written for either.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from kvtide_operator.api import names
from kvtide_operator.edge.kube import ApiError, Kube
from kvtide_operator.edge.reflector import Wake
from kvtide_operator.edge.store import Key, Store, key_of, version_of

logger = logging.getLogger(__name__)

LOOK_S = 60.0
# Names and versions are enough, of objects of which each is some kilobytes.
METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


@dataclass
class Canary:
    """What Kopf has told of each LLMDeployment, and what it owes.

    store, wake: what is listed and was not told is put right, and looked at
    """

    kube: Kube
    namespaces: tuple[str, ...]
    store: Store[bytes]
    wake: Wake
    _told: dict[Key, int] = field(default_factory=dict)
    _owed: dict[Key, tuple[int, float]] = field(default_factory=dict)

    def heard(self, key: Key, version: int, gone: bool = False) -> None:
        """Kopf has told of a version. Of two objects of one name it may tell in either order."""
        if version < self._told.get(key, 0):
            return
        if gone:
            self._told.pop(key, None)
            self._owed.pop(key, None)
            return
        self._told[key] = version
        if version >= self._owed.get(key, (0, 0.0))[0]:
            self._owed.pop(key, None)

    def compare(self, listed: Mapping[Key, int]) -> set[Key]:
        """Notes what Kopf owes by this list; gives what the store does not know as it is listed."""
        now = time.monotonic()
        owed = {key: version for key, version in listed.items() if self._told.get(key, 0) < version}
        self._owed = {key: self._owed.get(key, (version, now)) for key, version in owed.items()}
        return {key for key, version in owed.items() if self.store.version(key) < version}

    def beat(self) -> float:
        """When it last was certain that events arrive: now, unless Kopf owes one since some list."""
        return min((since for _, since in self._owed.values()), default=time.monotonic())

    async def run(self) -> None:
        """Compares until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.look()
            except ApiError as error:
                logger.warning("listing LLMDeployments: %s", error)

    async def look(self) -> None:
        """Compares once, and puts right what was missed. Raises ApiError."""
        listed: dict[Key, int] = {}
        concerned: set[Key] = set()
        for namespace in self.namespaces or (None,):
            here, version = {}, 0
            async for page in self.kube.lists(names.KIND, namespace, accept=METADATA):
                version = int(page["metadata"]["resourceVersion"])
                here.update({key_of(thing): version_of(thing) for thing in page["items"]})
            concerned |= self.store.relisted(set(here), version, namespace)
            listed |= here
        for key in self.compare(listed):
            document = await self.kube.get(names.KIND, *key)
            concerned |= self.store.listed(document) if document is not None else set()
        for key in concerned:
            self.wake(key)
