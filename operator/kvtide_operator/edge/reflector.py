"""Keeps one store as the API server has it: a list, then a watch from there on, and a list again where that breaks."""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from typing import Any

from kvtide_operator.edge.kube import ApiError, Json, Kube
from kvtide_operator.edge.store import Key, Store, key_of, version_of

logger = logging.getLogger(__name__)

BACKOFF_FIRST_S = 0.5
BACKOFF_LAST_S = 15.0
# That version is too long ago to be watched from.
GONE = 410

Wake = Callable[[Key], None]


class Reflector:
    """One kind in one namespace, or (None) in all.

    wake:      called with each LLMDeployment for which something is different now
    synced:    set once everything was listed
    heard_at:  when the API server last said anything, by the monotonic clock. A bookmark, which it sends about once
               a minute even where nothing changes, is something; so a watch that stalls is seen without a write
    """

    def __init__(
        self, kube: Kube, kind: str, namespace: str | None, selector: str, store: Store[Any], wake: Wake
    ) -> None:
        self.kind = kind
        self.synced = asyncio.Event()
        self.heard_at = time.monotonic()
        self._kube = kube
        self._namespace = namespace
        self._selector = selector
        self._store = store
        self._wake = wake
        self._since: str | None = None

    async def run(self) -> None:
        """Until cancelled."""
        failures = 0
        while True:
            began = time.monotonic()
            try:
                if self._since is None:
                    await self._list()
                await self._follow()
                failures = 0
            except ApiError as error:
                # What broke after it had gone well for a while is no row of failures.
                failures = 1 if time.monotonic() - began > BACKOFF_LAST_S else failures + 1
                if error.status == GONE:
                    logger.info("%ss: the watch lost its place, so that they are listed again", self.kind)
                    self._since = None
                else:
                    logger.warning("%ss: %s", self.kind, error)
                pause = min(BACKOFF_LAST_S, BACKOFF_FIRST_S * 2.0 ** (failures - 1))
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311  jitter, not a secret

    async def _list(self) -> None:
        keys: set[Key] = set()
        version = "0"
        async for page in self._kube.lists(self.kind, self._namespace, self._selector):
            version = page["metadata"]["resourceVersion"]
            for thing in page["items"]:
                # Of a list's items the API server leaves out what they all are.
                thing.update(kind=self.kind, apiVersion=page["apiVersion"])
                keys.add(key_of(thing))
                self._tell(self._store.listed(thing))
        self._tell(self._store.relisted(keys, int(version), self._namespace))
        self._since = version
        self.heard_at = time.monotonic()
        self.synced.set()

    async def _follow(self) -> None:
        """One watch, until the server ends it."""
        assert self._since is not None
        async for event in self._kube.watch(self.kind, self._namespace, self._selector, self._since):
            thing: Json = event["object"]
            if event["type"] == "ERROR":
                raise ApiError(int(thing.get("code", 0)), str(thing.get("message", thing)))
            self.heard_at = time.monotonic()
            self._since = thing["metadata"]["resourceVersion"]
            if event["type"] == "BOOKMARK":
                self._store.told = max(self._store.told, version_of(thing))
            else:
                self._tell(self._store.happened(thing, gone=event["type"] == "DELETED"))

    def _tell(self, owners: set[Key]) -> None:
        for owner in owners:
            self._wake(owner)
