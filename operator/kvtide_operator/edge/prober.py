"""Asks workers for a token now and then, so that Ready is said of those that answer and of no others.

A pod whose readiness probe passes may still answer nobody: its engine hangs, its port is cut off. What other clients
get is proof as well: a worker that has generated tokens since the last look is not asked at all.
"""

import asyncio
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from kvtide_operator.edge.worker_client import WorkerClient
from kvtide_operator.reconcile.observed import Answer, Sample
from kvtide_operator.reconcile.pods import PodView

# How often one that answers is asked, and one that does not, or gives no account of itself.
CALM_S = 60.0
WORRIED_S = 5.0
# How long an answer may take: a step over the long prompts of others was seen to take 20 s on a slow, shared CPU.
# One that does not even tell its state does not compute, it hangs.
ANSWER_S = 30.0
HANGING_S = 8.0
# How long a pass waits for the first answer of a worker that has just become ready.
PATIENCE_S = 1.5

_Key = tuple[str, str]  # namespace, name of the resource


@dataclass
class _Asked:
    """What is known of one process. Times by the monotonic clock; `generated` is the worker's own count of tokens."""

    started_at: float | None
    answer: Answer | None = None
    asked_at: float = float("-inf")
    generated: int = 0
    task: "asyncio.Task[None] | None" = field(default=None, repr=False)


class Prober:
    """The last answer of each worker, by resource and pod."""

    def __init__(self, client: WorkerClient) -> None:
        self._client = client
        self._asked: dict[_Key, dict[str, _Asked]] = {}

    async def answers(
        self,
        resource: _Key,
        model: str,
        key: str | None,
        ready: Collection[PodView],
        samples: Mapping[str, Sample],
        known: Mapping[str, float],
    ) -> dict[str, Answer]:
        """What is known of these pods; the first answer of a new one is waited for, but not long.

        known: pods that an earlier operator had an answer of, with the start of their process
        """
        before = self._asked.get(resource, {})
        asked = {pod.name: _current(before.get(pod.name), samples.get(pod.name), known.get(pod.name)) for pod in ready}
        self._asked[resource] = asked
        for name, gone in before.items():
            if gone is not asked.get(name) and gone.task is not None:
                gone.task.cancel()
        for pod in ready:
            worker = asked[pod.name]
            if pod.ip is not None and worker.task is None and _due(worker, samples.get(pod.name)):
                worker.asked_at = time.monotonic()
                within_s = ANSWER_S if pod.name in samples else HANGING_S
                worker.task = asyncio.create_task(self._ask(worker, pod.ip, model, key, within_s))
        first = [worker.task for worker in asked.values() if worker.answer is None and worker.task is not None]
        if first:
            await asyncio.wait(first, timeout=PATIENCE_S)
        return {name: worker.answer for name, worker in asked.items() if worker.answer is not None}

    def forget(self, resource: _Key) -> None:
        """Drops what is known of a resource that is gone, and asks its workers no more."""
        for worker in self._asked.pop(resource, {}).values():
            if worker.task is not None:
                worker.task.cancel()

    async def close(self) -> None:
        """Ends what is still being asked."""
        tasks = [worker.task for pods in self._asked.values() for worker in pods.values() if worker.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, worker: _Asked, ip: str, model: str, key: str | None, within_s: float) -> None:
        try:
            worker.answer = await self._client.ask(ip, model, key, within_s)
        finally:
            worker.task = None


def _current(before: _Asked | None, sample: Sample | None, known: float | None) -> _Asked:
    """What is known of the process that runs now: of an earlier one nothing counts."""
    if sample is None:
        return before or _Asked(None)
    started_at, generated = sample.state.started_at, sample.state.counters.generation_tokens
    if before is None or before.started_at not in (None, started_at):
        return _Asked(started_at, Answer(True) if known == started_at else None, generated=generated)
    if before.started_at is not None and generated > before.generated:
        before.answer, before.asked_at = Answer(True), time.monotonic()
    before.started_at, before.generated = started_at, generated
    return before


def _due(worker: _Asked, sample: Sample | None) -> bool:
    calm = sample is not None and worker.answer is not None and worker.answer.given is not False
    return time.monotonic() - worker.asked_at >= (CALM_S if calm else WORRIED_S)
