"""One pass with its reading and writing, over objects in memory: what is read only where it is needed, and kept."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest

from kvtide_operator.api import names
from kvtide_operator.autoscale.worker_state import WorkerState
from kvtide_operator.edge.cluster import Cluster
from kvtide_operator.edge.controller import Controller
from kvtide_operator.edge.kube import Kube
from kvtide_operator.edge.lookout import Lookout
from kvtide_operator.edge.metrics import Metrics
from kvtide_operator.edge.sampler import Sampler
from kvtide_operator.edge.store import Key
from kvtide_operator.edge.worker_client import WorkerClient
from kvtide_operator.reconcile.observed import Sample
from kvtide_operator.settings import OperatorSettings
from tests.operator.api_server import ApiServer

Json = dict[str, Any]
MIB = 2**20
SETTINGS = OperatorSettings("registry/worker:1", "kvtide-system", "one")
L4 = {"nvidia.com/gpu.memory": "23034", "nvidia.com/gpu.product": "NVIDIA-L4"}


class Server(ApiServer):
    """With one resource, and nodes that belong to no namespace."""

    def __init__(self, spec: Json, *nodes: Json, may_list_nodes: bool = True) -> None:
        super().__init__(refused=set() if may_list_nodes else {"Node"})
        self.nodes = list(nodes)
        self.spec(spec)

    def spec(self, spec: Json) -> None:
        """Somebody writes another spec."""
        metadata = {"name": "chat", "namespace": "team", "uid": "u-1", "generation": 1}
        self.keep({"kind": names.KIND, "metadata": metadata, "spec": spec})

    @property
    def planned(self) -> Json:
        """The condition Planned."""
        conditions = self.objects[names.KIND, "team", "chat"]["status"]["conditions"]
        found: Json = next(condition for condition in conditions if condition["type"] == "Planned")
        return found

    async def list_all(self, kind: str, namespace: str | None, selector: str = "") -> list[Json]:
        found = await super().list_all(kind, namespace, selector)
        return self.nodes if kind == "Node" else found


class Operator:
    """A controller with its own memory of the cluster."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.workers = WorkerClient()
        self.woken: list[Key] = []
        kube = cast(Kube, server)
        self.cluster = Cluster(kube, (), self.woken.append)
        self.lookout = Lookout(Sampler(self.workers, 0.0), 1.5, self.woken.append)
        self.controller = Controller(kube, self.cluster, self.workers, self.lookout, SETTINGS, Metrics())
        self.following = asyncio.create_task(self.cluster.run())

    async def reconcile(self) -> float | None:
        """One pass, once everything that happened was told."""
        await self.cluster.synced()
        await asyncio.sleep(0.02)
        for (kind, _, _), thing in self.server.objects.items():
            if kind == names.KIND:
                self.cluster.resources.happened(thing)
        return await self.controller.reconcile("team", "chat")

    async def close(self) -> None:
        self.following.cancel()
        await asyncio.gather(self.following, return_exceptions=True)
        await self.controller.close()
        await self.workers.close()


@pytest.fixture
async def operator_of() -> AsyncIterator[Callable[[Server], Operator]]:
    """An operator of its own for a cluster."""
    opened: list[Operator] = []

    def make(server: Server) -> Operator:
        opened.append(Operator(server))
        return opened[-1]

    yield make
    for one in opened:
        await one.close()


def spec(**parts: Any) -> Json:
    return {"model": {"uri": "hf://HuggingFaceTB/SmolLM2-135M-Instruct"}, **parts}


def gpu_node(name: str) -> Json:
    ready = {"type": "Ready", "status": "True"}
    status = {"allocatable": {"nvidia.com/gpu": "1"}, "conditions": [ready]}
    return {"metadata": {"name": name, "labels": L4}, "status": status}


async def test_nodes_are_listed_for_the_plan_that_needs_them_and_no_more(
    operator_of: Callable[[Server], Operator],
) -> None:
    server = Server(spec(device={"kind": "GPU"}), gpu_node("a"))
    operator = operator_of(server)
    await operator.reconcile()
    assert server.planned["status"] == "True"
    plan = server.objects[names.KIND, "team", "chat"]["status"]["plan"]
    assert (plan["device"], plan["memory"]["deviceBytes"]) == ("l4", 23034 * MIB)
    assert server.lists_asked.count("Node") == 1
    await operator_of(server).reconcile()  # a new operator finds the plan
    assert server.lists_asked.count("Node") == 1


async def test_a_spec_that_says_it_asks_no_node(operator_of: Callable[[Server], Operator]) -> None:
    server = Server(spec(device={"kind": "CPU", "memory": "2Gi"}), may_list_nodes=False)
    await operator_of(server).reconcile()
    assert server.planned["status"] == "True"
    assert "Node" not in server.lists_asked


async def test_without_the_right_to_list_nodes_the_condition_says_what_to_write(
    operator_of: Callable[[Server], Operator],
) -> None:
    server = Server(spec(device={"kind": "GPU"}), gpu_node("a"), may_list_nodes=False)
    await operator_of(server).reconcile()
    assert (server.planned["status"], server.planned["reason"]) == ("False", "DeviceMemoryUnknown")
    assert "write device.memory" in server.planned["message"]
    assert ("Deployment", "team", "chat") not in server.objects


async def test_what_a_worker_measured_is_in_the_plan_of_the_next_resource(
    operator_of: Callable[[Server], Operator],
    make_pod: Callable[..., Json],
    make_state: Callable[..., WorkerState],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server(spec(device={"kind": "CPU", "memory": "2Gi"}))
    operator = operator_of(server)
    await operator.reconcile()
    template = server.objects["Deployment", "team", "chat"]["spec"]["template"]["metadata"]["labels"]
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    pod = make_pod(intent=template[f"{names.GROUP}/intent"], conditions=[ready])
    server.keep({"kind": "Pod", **pod})
    measured = {"otherBytes": 300 * MIB, "deviceBytes": 2048 * MIB, "freeBytes": 900 * MIB}

    async def sample(_: WorkerClient, ip: str, token: str) -> Sample:
        return Sample(make_state(measured=measured), 0.5)

    monkeypatch.setattr(WorkerClient, "sample", sample)
    await operator.reconcile()
    remembered = server.objects["ConfigMap", "kvtide-system", "kvtide-operator-measured"]["data"]
    assert set(remembered) == {"smollm2-135m.cpu"}

    server.spec(spec(device={"kind": "CPU", "memory": "3Gi"}))
    await operator_of(server).reconcile()
    plan = server.objects[names.KIND, "team", "chat"]["status"]["plan"]
    assert plan["memory"]["overheadBytes"] == 348 * MIB  # and 48 MiB, which is more than 10 %
    assert plan["overheadMeasured"] is True


async def test_what_stands_where_a_child_belongs_is_not_written_over(
    operator_of: Callable[[Server], Operator],
) -> None:
    server = Server(spec(device={"kind": "CPU", "memory": "2Gi"}))
    theirs = server.keep({"kind": "Service", "metadata": {"namespace": "team", "name": "chat"}, "spec": {"x": 1}})
    await operator_of(server).reconcile()
    assert server.objects["Service", "team", "chat"] == theirs
    degraded = server.objects[names.KIND, "team", "chat"]["status"]["conditions"]
    assert "NameTaken" in {condition["reason"] for condition in degraded}
    assert ("Deployment", "team", "chat") in server.objects


async def test_a_pass_that_finds_everything_as_it_was_reads_nothing_and_writes_nothing(
    operator_of: Callable[[Server], Operator],
) -> None:
    server = Server(spec(device={"kind": "CPU", "memory": "2Gi"}))
    operator = operator_of(server)
    await operator.reconcile()
    await operator.reconcile()
    before = server.revision, len(server.gets_asked), len(server.lists_asked)
    for _ in range(3):
        await operator.reconcile()
    assert (server.revision, len(server.gets_asked), len(server.lists_asked)) == before


async def test_a_child_that_somebody_deletes_or_edits_wakes_its_resource_and_is_made_again(
    operator_of: Callable[[Server], Operator],
) -> None:
    server = Server(spec(device={"kind": "CPU", "memory": "2Gi"}))
    operator = operator_of(server)
    await operator.reconcile()
    await operator.reconcile()
    made = dict(server.objects)
    for kind, name in (("Service", "chat"), ("ConfigMap", "chat-plan"), ("NetworkPolicy", "chat")):
        operator.woken.clear()
        server.drop(kind, "team", name)
        await operator.reconcile()
        assert operator.woken[0] == ("team", "chat")
        again = server.objects[kind, "team", name]
        assert again["metadata"]["labels"] == made[kind, "team", name]["metadata"]["labels"]
    operator.woken.clear()
    service = server.objects["Service", "team", "chat"]
    server.keep({**service, "spec": {**service["spec"], "ports": []}})
    await operator.reconcile()
    assert operator.woken[0] == ("team", "chat")
    assert server.objects["Service", "team", "chat"]["spec"]["ports"][0]["port"] == 80
