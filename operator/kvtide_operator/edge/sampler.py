"""Asks the workers of a resource for their states, and waits for nobody who keeps it waiting."""

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

from kvtide_operator.edge.store import Key
from kvtide_operator.edge.worker_client import WorkerClient, WorkerError
from kvtide_operator.reconcile.observed import Sample
from kvtide_operator.reconcile.pods import PodView

# How long a pass waits for states. What a worker says later is for the next pass.
PATIENCE_S = 1.0


@dataclass(frozen=True)
class _Answer:
    """sample: None where there was none; at, took_s: when it came (monotonic), and after how long."""

    sample: Sample | None
    at: float
    took_s: float


class Sampler:
    """Remembers which workers keep passes waiting: these are asked too, but waited for once they are quick again.

    Until one that is late has failed to answer, what it said last stands for it, as old as it is.
    """

    def __init__(self, client: WorkerClient) -> None:
        self._client = client
        self._slow: dict[Key, dict[str, asyncio.Task[_Answer]]] = {}
        self._last: dict[Key, dict[str, tuple[Sample, float]]] = {}

    async def samples(self, resource: Key, pods: Iterable[PodView], token: str) -> dict[str, Sample]:
        """What these pods say now, or a slow one said before; one that does not answer is left out."""
        before, known = self._slow.pop(resource, {}), self._last.get(resource, {})
        asked = [pod for pod in pods if pod.ip is not None]
        for name in before.keys() - {pod.name for pod in asked}:
            before[name].cancel()
        tasks = {pod.name: before.get(pod.name) or self._begin(pod, token) for pod in asked}
        quick = [task for name, task in tasks.items() if name not in before]
        if quick:
            await asyncio.wait(quick, timeout=PATIENCE_S)
        last: dict[str, tuple[Sample, float]] = {}
        slow: dict[str, asyncio.Task[_Answer]] = {}
        for pod in asked:
            task = tasks[pod.name]
            if not task.done():
                slow[pod.name] = task
                if pod.name in known:
                    last[pod.name] = known[pod.name]
                continue
            answer = task.result()
            if answer.sample is not None:
                last[pod.name] = answer.sample, answer.at
            if answer.took_s > PATIENCE_S:
                slow[pod.name] = self._begin(pod, token)
        if slow:
            self._slow[resource] = slow
        self._last[resource] = last
        return {name: _aged(*said, late=not tasks[name].done()) for name, said in last.items()}

    def forget(self, resource: Key) -> None:
        """Asks the workers of a resource that is gone no more."""
        self._last.pop(resource, None)
        for task in self._slow.pop(resource, {}).values():
            task.cancel()

    def _begin(self, pod: PodView, token: str) -> "asyncio.Task[_Answer]":
        return asyncio.create_task(self._ask(str(pod.ip), token))

    async def _ask(self, ip: str, token: str) -> _Answer:
        began = time.monotonic()
        try:
            sample = await self._client.sample(ip, token)
        except WorkerError:
            sample = None
        return _Answer(sample, time.monotonic(), time.monotonic() - began)


def _aged(sample: Sample, at: float, late: bool) -> Sample:
    return replace(sample, age_s=sample.age_s + time.monotonic() - at, late=late)
