"""Looks after workers that have nothing to do, so that passes need not: one small question to each, now and then.

A pass costs many times what a worker's state does. Between two passes over a calm resource its workers are asked for
nothing but that, and a pass is asked for once one says something new.
"""

import asyncio
import heapq
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from kvtide_operator.edge.reflector import Wake
from kvtide_operator.edge.sampler import Sampler
from kvtide_operator.edge.store import Key
from kvtide_operator.reconcile.looks import is_news
from kvtide_operator.reconcile.observed import Sample

# Resources that are looked after at once. Of these a worker that hangs keeps one for as long as an answer may take.
AT_ONCE = 64


@dataclass(slots=True)
class _Calm:
    """One resource: its workers, by name with their address, and what each last told a pass."""

    token: str
    there: Mapping[str, str]
    seen: Mapping[str, Sample]
    due: float = 0.0


@dataclass
class Lookout:
    """`every_s`: how often a calm worker is asked."""

    sampler: Sampler
    every_s: float
    wake: Wake
    _calm: dict[Key, _Calm] = field(default_factory=dict)
    _due: list[tuple[float, Key]] = field(default_factory=list)
    _asking: "set[asyncio.Task[None]]" = field(default_factory=set)
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))

    def watch(self, resource: Key, token: str, there: Mapping[str, str], seen: Mapping[str, Sample]) -> None:
        """Looks after these workers, by name with their address, until the next pass.

        seen: what each told the pass that found it calm
        """
        self._calm[resource] = calm = _Calm(token, there, seen)
        self._plan(resource, calm)

    def leave(self, resource: Key) -> None:
        """A pass begins, or the resource is gone: nobody else is to look."""
        self._calm.pop(resource, None)

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                now = time.monotonic()
                while self._due and self._due[0][0] <= now:
                    due, resource = heapq.heappop(self._due)
                    calm = self._calm.get(resource)
                    # An older date of one that was looked at since.
                    if calm is None or calm.due != due:
                        continue
                    await self._slots.acquire()
                    task = asyncio.create_task(self._look(resource, calm))
                    self._asking.add(task)
                    task.add_done_callback(self._done)
                await asyncio.sleep(min(0.1, max(0.0, self._due[0][0] - now)) if self._due else 0.1)
        finally:
            for task in self._asking:
                task.cancel()

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._asking.discard(task)
        self._slots.release()

    async def _look(self, resource: Key, calm: _Calm) -> None:
        answers = await self.sampler.ask(resource, calm.there, calm.token)
        if self._calm.get(resource) is not calm:
            return
        if any(is_news(before, answers.get(name)) for name, before in calm.seen.items()):
            self.leave(resource)
            self.wake(resource)
        else:
            self._plan(resource, calm)

    def _plan(self, resource: Key, calm: _Calm) -> None:
        # Not all at once, even where all began at once.
        calm.due = time.monotonic() + self.every_s * random.uniform(0.8, 1.0)  # noqa: S311
        heapq.heappush(self._due, (calm.due, resource))
