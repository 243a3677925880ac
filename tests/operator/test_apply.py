"""What a pass wants is done in an order that others can rely on."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from kvtide_operator.api import names
from kvtide_operator.api.resource import LLMDeployment
from kvtide_operator.api.status import Status
from kvtide_operator.edge.apply import carry_out
from kvtide_operator.edge.cluster import Cluster
from kvtide_operator.edge.worker_client import WorkerClient
from kvtide_operator.reconcile.actions import Actions
from kvtide_operator.reconcile.observed import Observed

Json = dict[str, Any]


@dataclass
class Writes:
    """A cluster that takes its time with pods, and says what was written in which order."""

    written: list[tuple[str, str]] = field(default_factory=list)

    async def merge(self, kind: str, namespace: str, name: str, change: Json) -> None:
        await asyncio.sleep(0.01)
        self.written.append((name, change["metadata"]["annotations"][names.DELETION_COST_ANNOTATION]))

    async def apply(self, manifest: Json) -> None:
        self.written.append((manifest["kind"], str(manifest["spec"]["replicas"])))


async def test_who_is_to_go_is_written_before_fewer_replicas_are(make_resource: Callable[..., LLMDeployment]) -> None:
    writes, resource = Writes(), make_resource()
    smaller = {"kind": "Deployment", "metadata": {"name": "chat", "namespace": "team"}, "spec": {"replicas": 1}}
    actions = Actions(Status(), 2.0, deletion_costs={"chat-a": 900, "chat-b": 20}, apply=(smaller,))
    workers = WorkerClient()
    assert await carry_out(cast(Cluster, writes), workers, Observed(resource), actions) == ()
    await workers.close()
    assert writes.written == [("chat-a", "900"), ("chat-b", "20"), ("Deployment", "1")]
