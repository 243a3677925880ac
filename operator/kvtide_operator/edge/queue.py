"""The work queue: every resource at most once at a time, an event during its pass means one more pass."""

import asyncio
import heapq
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from kvtide_operator.edge.kube import ApiError

logger = logging.getLogger(__name__)

Key = tuple[str, str]  # namespace, name
# A pass returns after how many seconds it wants to be run again, None if never by itself.
Pass = Callable[[str, str], Awaitable[float | None]]

BACKOFF_FIRST_S = 1.0
BACKOFF_LAST_S = 60.0


@dataclass
class _Entry:
    """One resource: when it is due, whether it runs, whether it was asked for while it ran."""

    due: float | None = None
    running: bool = False
    dirty: bool = False
    failures: int = 0


@dataclass
class WorkQueue:
    """Runs `reconcile` for requested keys, some at a time; who is due first comes first.

    A key that fails is tried again later and later, with jitter; the others do not notice.
    """

    reconcile: Pass
    workers: int = 32
    heartbeat: float = field(default_factory=time.monotonic)
    _entries: dict[Key, _Entry] = field(default_factory=dict)
    _due: list[tuple[float, Key]] = field(default_factory=list)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    def request(self, namespace: str, name: str, after_s: float = 0.0) -> None:
        """Asks for a pass; asking again before it has begun changes nothing but to make it sooner."""
        key = (namespace, name)
        entry = self._entries.setdefault(key, _Entry())
        if entry.running:
            entry.dirty = entry.dirty or after_s == 0.0
            return
        due = time.monotonic() + after_s
        if entry.due is None or due < entry.due:
            entry.due = due
            heapq.heappush(self._due, (due, key))
            self._wake.set()

    async def run(self) -> None:
        """Works until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self.workers):
                group.create_task(self._work())

    async def _work(self) -> None:
        while True:
            key = await self._next()
            entry = self._entries[key]
            entry.due, entry.running, entry.dirty = None, True, False
            again: float | None
            try:
                again = await self.reconcile(*key)
                entry.failures = 0
            except ApiError as error:
                again = self._backoff(entry)
                logger.warning("%s/%s: again in %.1f s: %s", *key, again, error)
            except Exception:
                again = self._backoff(entry)
                logger.exception("%s/%s: the pass failed, again in %.1f s", *key, again)
            entry.running = False
            if entry.dirty:
                again = 0.0 if entry.failures == 0 else again
            if again is None:
                del self._entries[key]
            else:
                self.request(*key, after_s=again)

    def _backoff(self, entry: _Entry) -> float:
        entry.failures += 1
        full = min(BACKOFF_LAST_S, BACKOFF_FIRST_S * 2.0 ** (entry.failures - 1))
        return full * random.uniform(0.5, 1.0)  # noqa: S311  jitter, not a secret

    async def _next(self) -> Key:
        """Waits for the next key that is due. The heartbeat moves at least once a second: liveness reads it."""
        while True:
            now = time.monotonic()
            self.heartbeat = now
            if self._due and self._due[0][0] <= now:
                due, key = heapq.heappop(self._due)
                entry = self._entries.get(key)
                # An older, later date of a key that was asked for sooner, or of one that is gone.
                if entry is not None and not entry.running and entry.due == due:
                    return key
                continue
            self._wake.clear()
            pause = min(1.0, self._due[0][0] - now) if self._due else 1.0
            try:
                await asyncio.wait_for(self._wake.wait(), timeout=pause)
            except TimeoutError:
                continue
