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
    """Remembers which workers keep passes waiting: these are asked too, but waited for once they are quick again."""

    def __init__(self, client: WorkerClient) -> None:
        self._client = client
        self._slow: dict[Key, dict[str, asyncio.Task[_Answer]]] = {}

    async def samples(self, resource: Key, pods: Iterable[PodView], token: str) -> dict[str, Sample]:
        """What these pods say now, or a slow one a moment ago; one that says nothing is left out."""
        before = self._slow.pop(resource, {})
        asked = [pod for pod in pods if pod.ip is not None]
        for name in before.keys() - {pod.name for pod in asked}:
            before[name].cancel()
        tasks = {pod.name: before.get(pod.name) or self._begin(pod, token) for pod in asked}
        quick = [task for name, task in tasks.items() if name not in before]
        if quick:
            await asyncio.wait(quick, timeout=PATIENCE_S)
        found, slow = {}, {}
        for pod in asked:
            task = tasks[pod.name]
            if not task.done():
                slow[pod.name] = task
                continue
            answer = task.result()
            if answer.sample is not None:
                found[pod.name] = replace(answer.sample, age_s=answer.sample.age_s + time.monotonic() - answer.at)
            if answer.took_s > PATIENCE_S:
                slow[pod.name] = self._begin(pod, token)
        if slow:
            self._slow[resource] = slow
        return found

    def forget(self, resource: Key) -> None:
        """Asks the workers of a resource that is gone no more."""
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
