"""What the benchmark sees of the operator's work: who is Ready, and what Deployments are told to have."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field

from bench.operator_size.client import DEPLOYMENTS, RESOURCES, Api
from kvtide_operator.api import names


@dataclass
class Seen:
    """By the API server's watches: who is Ready, and how many replicas each Deployment is told to have."""

    api: Api
    ready: set[str] = field(default_factory=set)
    reasons: dict[str, str] = field(default_factory=dict)
    replicas: dict[str, int] = field(default_factory=dict)
    events: int = 0
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._resources())
            group.create_task(self._deployments())

    async def replicas_of(self, name: str, wanted: int, within_s: float) -> float | None:
        """When (monotonic) the Deployment was seen with at least so many replicas; None where it was not in time."""
        try:
            async with asyncio.timeout(within_s), self._changed:
                await self._changed.wait_for(lambda: self.replicas.get(name, 0) >= wanted)
                return time.monotonic()
        except TimeoutError:
            return None

    def waiting_for(self) -> str:
        """Why resources are not Ready, with how many each."""
        counts = Counter(reason for name, reason in self.reasons.items() if name not in self.ready)
        return ", ".join(f"{count} {reason}" for reason, count in counts.most_common(3))

    async def _resources(self) -> None:
        async for event in self.api.watch(f"{RESOURCES}/{names.PLURAL}"):
            self.events += 1
            name = event["object"]["metadata"]["name"]
            conditions = event["object"].get("status", {}).get("conditions", [])
            verdict = next((one for one in conditions if one["type"] == "Ready"), None)
            self.reasons[name] = verdict["reason"] if verdict else "no status"
            (self.ready.add if verdict and verdict["status"] == "True" else self.ready.discard)(name)

    async def _deployments(self) -> None:
        async for event in self.api.watch(DEPLOYMENTS, names.NAME_LABEL):
            async with self._changed:
                self.replicas[event["object"]["metadata"]["name"]] = event["object"]["spec"].get("replicas", 1)
                self._changed.notify_all()
