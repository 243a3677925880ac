"""What workers said last of themselves, asked again where that is old; and nobody waits for a slow one."""

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from kvtide_operator.edge.store import Key
from kvtide_operator.edge.worker_client import WorkerClient, WorkerError
from kvtide_operator.reconcile.observed import Sample
from kvtide_operator.reconcile.pods import PodView

# How long a pass waits for states. What a worker says later is for the next pass.
PATIENCE_S = 1.0


@dataclass(slots=True)
class _Worker:
    """One worker. Times by the monotonic clock.

    said, said_at: its last answer, None where it last gave none
    asking:        while it has yet to answer
    slow:          it kept a pass waiting for too long, and has not been quick since
    """

    said: Sample | None = None
    said_at: float = float("-inf")
    asking: "asyncio.Task[None] | None" = None
    slow: bool = False


@dataclass
class Sampler:
    """The last answers of all workers, by resource and pod.

    fresh_s: a pass asks no worker again that answered less long ago
    """

    client: WorkerClient
    fresh_s: float
    _workers: dict[Key, dict[str, _Worker]] = field(default_factory=dict)

    async def samples(self, resource: Key, pods: Iterable[PodView], token: str) -> dict[str, Sample]:
        """What these pods say now, or a slow one said before; one that does not answer is left out."""
        before = self._workers.get(resource, {})
        there = {pod.name: pod.ip for pod in pods if pod.ip is not None}
        for name in before.keys() - there.keys():
            _stop(before[name])
        workers = self._workers[resource] = {name: before.get(name) or _Worker() for name in there}
        awaited = []
        for name, worker in workers.items():
            if worker.asking is None and time.monotonic() - worker.said_at > self.fresh_s:
                self._begin(worker, there[name], token)
            if worker.asking is not None and not worker.slow:
                awaited.append(worker.asking)
        if awaited:
            done, _ = await asyncio.wait(awaited, timeout=PATIENCE_S)
            for task in done:
                task.result()
        for worker in workers.values():
            worker.slow = worker.slow or worker.asking is not None
        return {name: _aged(worker) for name, worker in workers.items() if worker.said is not None}

    async def listen(self, resource: Key, name: str, ip: str, token: str, idle_s: float) -> Sample | None:
        """What this pod says once it has a request, at the latest after `idle_s`; None if it does not answer.

        A pass does not wait for it; one that comes soon after takes what was said.
        """
        try:
            said = await self.client.sample(ip, token, idle_s)
        except WorkerError:
            return None
        worker = self._workers.get(resource, {}).get(name)
        if worker is not None:
            worker.said, worker.said_at = said, time.monotonic()
        return said

    def forget(self, resource: Key) -> None:
        """Asks the workers of a resource that is gone no more."""
        for worker in self._workers.pop(resource, {}).values():
            _stop(worker)

    def _begin(self, worker: _Worker, ip: str, token: str) -> None:
        worker.asking = asyncio.create_task(self._ask(worker, ip, token))

    async def _ask(self, worker: _Worker, ip: str, token: str) -> None:
        began = time.monotonic()
        try:
            worker.said = await self.client.sample(ip, token)
        except WorkerError:
            worker.said = None
        finally:
            worker.asking = None
        now = time.monotonic()
        worker.said_at = now if worker.said is not None else float("-inf")
        worker.slow = now - began > PATIENCE_S


def _stop(worker: _Worker) -> None:
    if worker.asking is not None:
        worker.asking.cancel()


def _aged(worker: _Worker) -> Sample:
    assert worker.said is not None
    return replace(
        worker.said, age_s=worker.said.age_s + time.monotonic() - worker.said_at, late=worker.asking is not None
    )
