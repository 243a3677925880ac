"""The work queue: every resource at most once at a time, an event during its pass means one more pass."""

import asyncio
import contextlib
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
    """One resource: when it is due, and whether that is news; whether it runs, and was asked for while it ran."""

    due: float | None = None
    news: bool = False
    running: bool = False
    dirty: bool = False
    failures: int = 0


@dataclass
class WorkQueue:
    """Runs `reconcile` for requested keys, so many at a time; who is due first comes first.

    Some places are kept for what was asked for, in contrast to what comes again by its own date: where passes take
    their time, news is not to wait behind all that is merely due. A key that fails is tried again later and later, with
    jitter; the others do not notice.

    heartbeat: when a pass could last be begun; it stands still where all of them hang
    """

    reconcile: Pass
    places: int = 32
    kept_for_news: int = 8
    heartbeat: float = field(default_factory=time.monotonic)
    _entries: dict[Key, _Entry] = field(default_factory=dict)
    _news: list[tuple[float, Key]] = field(default_factory=list)
    _dates: list[tuple[float, Key]] = field(default_factory=list)
    _running: int = 0
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    def request(self, namespace: str, name: str, after_s: float = 0.0) -> None:
        """Asks for a pass, at once or by a date; asking again before it has begun can only make it sooner."""
        key = (namespace, name)
        entry = self._entries.setdefault(key, _Entry())
        if entry.running:
            entry.dirty = entry.dirty or after_s == 0.0
            return
        due, news = time.monotonic() + after_s, after_s == 0.0
        if entry.due is None or due < entry.due or (news and not entry.news):
            entry.due, entry.news = due, news
            heapq.heappush(self._news if news else self._dates, (due, key))
            self._wake.set()

    async def run(self) -> None:
        """Works until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._wake.clear()
                while (key := self._next()) is not None:
                    entry = self._entries[key]
                    entry.due, entry.news, entry.running, entry.dirty = None, False, True, False
                    self._running += 1
                    group.create_task(self._work(key, entry))
                if self._running < self.places:
                    self.heartbeat = time.monotonic()
                # At least once a second, for the heartbeat's sake: liveness reads it.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._pause()):
                        await self._wake.wait()

    async def _work(self, key: Key, entry: _Entry) -> None:
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
        self._running -= 1
        self._wake.set()
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

    def _next(self) -> Key | None:
        """A key that is due and for which there is a place."""
        while heap := self._open():
            due, key = heap[0]
            if due > time.monotonic():
                return None
            heapq.heappop(heap)
            entry = self._entries.get(key)
            # An older, later date of a key that was asked for sooner, or of one that is gone.
            if entry is not None and not entry.running and entry.due == due:
                return key
        return None

    def _open(self) -> list[tuple[float, Key]]:
        """Of what there is a place for, that which is due first; empty where there is nothing."""
        free = self.places - self._running
        heaps = [self._news] if free > 0 else []
        if free > self.kept_for_news:
            heaps.append(self._dates)
        return min((heap for heap in heaps if heap), key=lambda heap: heap[0], default=[])

    def _pause(self) -> float:
        """Seconds until something is due that there is a place for, one at most."""
        heap = self._open()
        return min(1.0, max(0.0, heap[0][0] - time.monotonic())) if heap else 1.0
