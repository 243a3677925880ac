"""Looks after workers that have nothing to do, so that passes need not: each is asked to tell when it has.

A pass costs many times what a worker's state does, and states of three thousand workers cost more than a core where
each is asked every other second. So a worker is asked one question, and answers it when it has a request: what it then
says is news at once, and until then it costs nothing.
"""

import asyncio
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from kvtide_operator.edge.reflector import Wake
from kvtide_operator.edge.sampler import Sampler
from kvtide_operator.edge.store import Key
from kvtide_operator.reconcile.looks import is_news
from kvtide_operator.reconcile.observed import Sample

# How long a worker may keep an answer back. One that hangs is found out this much later.
IDLE_S = 6.0
# What comes to a fleet comes to several of its workers: the look is to see all of it, not only whoever was first.
GATHER_S = 0.2


@dataclass
class Lookout:
    """`pause_s`: how long after a pass nothing is news, and between two questions to a worker that does not keep its
    answer back. A resource with a short request every now and then is not passed over for each of them."""

    sampler: Sampler
    pause_s: float
    wake: Wake
    _watches: "dict[Key, asyncio.Task[None]]" = field(default_factory=dict)

    def watch(
        self, resource: Key, token: str, there: Mapping[str, str], seen: Mapping[str, Sample], for_s: float
    ) -> None:
        """Looks after these workers, by name with their address, until the next pass, which is due in `for_s` seconds.

        seen: what each told the pass that found it calm
        """
        self.leave(resource)
        watch = self._watch(resource, token, there, seen, time.monotonic() + for_s)
        self._watches[resource] = asyncio.create_task(watch)

    def leave(self, resource: Key) -> None:
        """A pass begins, or the resource is gone: nobody else is to look."""
        watch = self._watches.pop(resource, None)
        if watch is not None:
            watch.cancel()

    async def close(self) -> None:
        """Looks after nobody any more."""
        watches = list(self._watches.values())
        for resource in list(self._watches):
            self.leave(resource)
        await asyncio.gather(*watches, return_exceptions=True)

    async def _watch(
        self, resource: Key, token: str, there: Mapping[str, str], seen: Mapping[str, Sample], until: float
    ) -> None:
        await self._pause()
        asked = [
            asyncio.create_task(self._hear(resource, token, name, there[name], before, until))
            for name, before in seen.items()
            if name in there
        ]
        try:
            for heard in asyncio.as_completed(asked):
                if await heard:
                    await asyncio.sleep(GATHER_S)
                    self.wake(resource)
                    return
        finally:
            for task in asked:
                task.cancel()

    async def _hear(self, resource: Key, token: str, name: str, ip: str, before: Sample, until: float) -> bool:
        """Whether a worker had news before then."""
        while (left_s := until - time.monotonic()) > 0:
            began = time.monotonic()
            idle_s = min(IDLE_S, left_s)
            if is_news(before, await self.sampler.listen(resource, name, ip, token, idle_s)):
                return True
            if time.monotonic() - began < idle_s / 2:
                await self._pause()
        return False

    async def _pause(self) -> None:
        # Not all at once, even where all began at once.
        await asyncio.sleep(self.pause_s * random.uniform(0.8, 1.0))  # noqa: S311
