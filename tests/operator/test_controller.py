"""One pass with its reading and writing, over objects in memory: what is read only where it is needed, and kept."""

import copy
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, cast

import pytest

from kvtide_operator.api import names
from kvtide_operator.autoscale.worker_state import WorkerState
from kvtide_operator.edge.controller import Controller
from kvtide_operator.edge.kube import ApiError, Kube
from kvtide_operator.edge.metrics import Metrics
from kvtide_operator.edge.worker_client import WorkerClient
from kvtide_operator.reconcile.observed import Sample
from kvtide_operator.reconcile.pods import PodView
from kvtide_operator.settings import OperatorSettings

Json = dict[str, Any]
MIB = 2**20
SETTINGS = OperatorSettings("registry/worker:1", "kvtide-system", "one")
L4 = {"nvidia.com/gpu.memory": "23034", "nvidia.com/gpu.product": "NVIDIA-L4"}


class Cluster:
    """Objects by kind, namespace and name; every list is counted by kind."""

    def __init__(self, spec: Json, *nodes: Json, may_list_nodes: bool = True) -> None:
        self.objects: dict[tuple[str, str, str], Json] = {}
        self.nodes = list(nodes)
        self.may_list_nodes = may_list_nodes
        self.lists: list[str] = []
        metadata = {"name": "chat", "namespace": "team", "uid": "u-1", "generation": 1}
        self.keep({"kind": names.KIND, "metadata": metadata, "spec": spec})

    def keep(self, manifest: Json) -> None:
        metadata = manifest["metadata"]
        self.objects[manifest["kind"], metadata["namespace"], metadata["name"]] = copy.deepcopy(manifest)

    @property
    def planned(self) -> Json:
        """The condition Planned."""
        conditions = self.objects[names.KIND, "team", "chat"]["status"]["conditions"]
        found: Json = next(condition for condition in conditions if condition["type"] == "Planned")
        return found

    async def get(self, kind: str, namespace: str, name: str) -> Json | None:
        return copy.deepcopy(self.objects.get((kind, namespace, name)))

    async def list_all(self, kind: str, namespace: str | None, selector: str = "") -> list[Json]:
        self.lists.append(kind)
        if kind == "Node":
            if not self.may_list_nodes:
                raise ApiError(403, "nodes is forbidden")
            return self.nodes
        return [found for (of_kind, _, _), found in self.objects.items() if of_kind == kind]

    async def pages(self, kind: str, namespace: str | None, selector: str = "") -> AsyncIterator[list[Json]]:
        yield await self.list_all(kind, namespace, selector)

    async def apply(self, manifest: Json, subresource: str = "") -> None:
        if subresource:
            self.objects[names.KIND, "team", "chat"]["status"] = copy.deepcopy(manifest["status"])
        else:
            self.keep(manifest)

    async def create(self, manifest: Json) -> None:
        self.keep(manifest)

    async def merge(self, kind: str, namespace: str, name: str, change: Json) -> None:
        if (kind, namespace, name) not in self.objects:
            raise ApiError(404, "not found")
        self.objects[kind, namespace, name].setdefault("data", {}).update(change.get("data", {}))

    async def delete(self, kind: str, namespace: str, name: str) -> None:
        self.objects.pop((kind, namespace, name), None)


@pytest.fixture
async def controller_of() -> AsyncIterator[Callable[[Cluster], Controller]]:
    """A controller of its own for a cluster."""
    opened: list[Controller] = []

    def make(cluster: Cluster) -> Controller:
        opened.append(Controller(cast(Kube, cluster), SETTINGS, Metrics()))
        return opened[-1]

    yield make
    for controller in opened:
        await controller.close()


def spec(**parts: Any) -> Json:
    return {"model": {"uri": "hf://HuggingFaceTB/SmolLM2-135M-Instruct"}, **parts}


def gpu_node(name: str) -> Json:
    ready = {"type": "Ready", "status": "True"}
    status = {"allocatable": {"nvidia.com/gpu": "1"}, "conditions": [ready]}
    return {"metadata": {"name": name, "labels": L4}, "status": status}


async def test_nodes_are_listed_for_the_plan_that_needs_them_and_no_more(
    controller_of: Callable[[Cluster], Controller],
) -> None:
    cluster = Cluster(spec(device={"kind": "GPU"}), gpu_node("a"))
    controller = controller_of(cluster)
    await controller.reconcile("team", "chat")
    assert cluster.planned["status"] == "True"
    plan = cluster.objects[names.KIND, "team", "chat"]["status"]["plan"]
    assert (plan["device"], plan["memory"]["deviceBytes"]) == ("l4", 23034 * MIB)
    assert cluster.lists.count("Node") == 1
    await controller_of(cluster).reconcile("team", "chat")  # a new operator finds the plan
    assert cluster.lists.count("Node") == 1


async def test_a_spec_that_says_it_asks_no_node(controller_of: Callable[[Cluster], Controller]) -> None:
    cluster = Cluster(spec(device={"kind": "CPU", "memory": "2Gi"}), may_list_nodes=False)
    await controller_of(cluster).reconcile("team", "chat")
    assert cluster.planned["status"] == "True"
    assert "Node" not in cluster.lists


async def test_without_the_right_to_list_nodes_the_condition_says_what_to_write(
    controller_of: Callable[[Cluster], Controller],
) -> None:
    cluster = Cluster(spec(device={"kind": "GPU"}), gpu_node("a"), may_list_nodes=False)
    await controller_of(cluster).reconcile("team", "chat")
    assert (cluster.planned["status"], cluster.planned["reason"]) == ("False", "DeviceMemoryUnknown")
    assert "write device.memory" in cluster.planned["message"]
    assert ("Deployment", "team", "chat") not in cluster.objects


async def test_what_a_worker_measured_is_in_the_plan_of_the_next_resource(
    controller_of: Callable[[Cluster], Controller],
    make_pod: Callable[..., Json],
    make_state: Callable[..., WorkerState],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(spec(device={"kind": "CPU", "memory": "2Gi"}))
    controller = controller_of(cluster)
    await controller.reconcile("team", "chat")
    template = cluster.objects["Deployment", "team", "chat"]["spec"]["template"]["metadata"]["labels"]
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    pod = make_pod(intent=template[f"{names.GROUP}/intent"], conditions=[ready])
    cluster.keep({"kind": "Pod", **pod})
    measured = {"otherBytes": 300 * MIB, "deviceBytes": 2048 * MIB, "freeBytes": 900 * MIB}

    async def samples(_: WorkerClient, pods: Iterable[PodView], token: str) -> dict[str, Sample]:
        return {pod.name: Sample(make_state(measured=measured), 0.5) for pod in pods}

    monkeypatch.setattr(WorkerClient, "samples", samples)
    await controller.reconcile("team", "chat")
    remembered = cluster.objects["ConfigMap", "kvtide-system", "kvtide-operator-measured"]["data"]
    assert set(remembered) == {"smollm2-135m.cpu"}

    resource = cluster.objects[names.KIND, "team", "chat"]
    cluster.keep({**resource, "spec": spec(device={"kind": "CPU", "memory": "3Gi"})})
    await controller_of(cluster).reconcile("team", "chat")
    plan = cluster.objects[names.KIND, "team", "chat"]["status"]["plan"]
    assert plan["memory"]["overheadBytes"] == 348 * MIB  # and 48 MiB, which is more than 10 %
    assert plan["overheadMeasured"] is True
