"""On which nodes the scheduler would place a worker, by the rules of the Kubernetes documentation."""

from typing import Any

import pytest

from kvtide_operator.api.worker import WorkerSpec
from kvtide_operator.plan.nodes import NodeDevices, Taint, obstacle

Json = dict[str, Any]
GPU = "nvidia.com/gpu"
LIVE = {
    "metadata": {"name": "gpu-1", "labels": {"pool": "train", "cores": "96"}},
    "spec": {
        "unschedulable": False,
        "taints": [
            {"key": "team", "value": "a", "effect": "NoSchedule"},
            {"key": "old", "effect": "PreferNoSchedule"},
        ],
    },
    "status": {
        "allocatable": {"cpu": "7910m", "nvidia.com/gpu": "8"},
        "conditions": [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": "True"}],
    },
}
TEAM = [{"key": "team", "operator": "Exists"}]


def terms(*expressions: Json, fields: Json | None = None) -> Json:
    term: Json = {"matchExpressions": list(expressions)} | ({"matchFields": [fields]} if fields else {})
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


def expression(key: str, operator: str, *values: str) -> Json:
    return {"key": key, "operator": operator, "values": list(values)}


def test_a_live_node_is_read() -> None:
    found = NodeDevices.parse(LIVE)
    assert (found.name, found.labels["pool"], found.unschedulable, found.ready) == ("gpu-1", "train", False, True)
    assert found.taints == (Taint("team", "a", "NoSchedule"), Taint("old", "", "PreferNoSchedule"))
    assert [found.devices(name) for name in (GPU, "cpu", "amd.com/gpu")] == [8, 0, 0]
    assert NodeDevices.parse({"metadata": {"name": "new"}}) == NodeDevices("new", {}, {}, ready=False)


@pytest.mark.parametrize("status", ["False", "Unknown"])  # Unknown: its kubelet has not been heard of for a while
def test_a_node_that_is_not_ready_takes_nobody(status: str) -> None:
    conditions = [{"type": "Ready", "status": status}]
    found = NodeDevices.parse({**LIVE, "status": {**LIVE["status"], "conditions": conditions}})
    worker = WorkerSpec.model_validate({"tolerations": TEAM})
    assert obstacle(found, worker, GPU, 1) == "is not ready"
    assert obstacle(NodeDevices.parse(LIVE), worker, GPU, 1) is None


@pytest.mark.parametrize(
    ("tolerations", "tolerated"),
    [
        # https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/
        ([], False),
        ([{"key": "team", "operator": "Exists"}], True),
        ([{"key": "team", "operator": "Exists", "effect": "NoSchedule"}], True),
        ([{"key": "team", "operator": "Exists", "effect": "NoExecute"}], False),
        ([{"key": "team", "operator": "Equal", "value": "a"}], True),
        ([{"key": "team", "value": "a"}], True),
        ([{"key": "team", "value": "b"}], False),
        ([{"key": "team"}], False),
        ([{"operator": "Exists"}], True),
        ([{"key": "other", "operator": "Exists"}], False),
    ],
)
def test_taints(tolerations: list[Json], tolerated: bool) -> None:
    worker = WorkerSpec.model_validate({"tolerations": tolerations})
    assert (obstacle(NodeDevices.parse(LIVE), worker, GPU, 1) is None) is tolerated


def test_the_taint_of_the_devices_own_name_is_tolerated_by_the_cluster() -> None:
    """The admission plugin ExtendedResourceToleration adds that toleration to pods that ask for the resource."""
    tainted = NodeDevices("n", {}, {GPU: "1"}, (Taint(GPU, "present", "NoSchedule"),))
    assert obstacle(tainted, WorkerSpec(), GPU, 1) is None
    assert obstacle(tainted, WorkerSpec(), "nvidia.com/mig-1g.5gb", 0) is not None


@pytest.mark.parametrize(
    ("affinity", "matches"),
    [
        # https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/#node-affinity
        ({}, True),
        ({"podAffinity": {}}, True),
        (terms(expression("pool", "In", "serve", "train")), True),
        (terms(expression("pool", "In", "serve")), False),
        (terms(expression("pool", "NotIn", "serve")), True),
        (terms(expression("zone", "NotIn", "a")), True),
        (terms(expression("pool", "Exists")), True),
        (terms(expression("zone", "Exists")), False),
        (terms(expression("zone", "DoesNotExist")), True),
        (terms(expression("cores", "Gt", "64")), True),
        (terms(expression("cores", "Lt", "64")), False),
        (terms(expression("zone", "Gt", "1")), False),
        (terms(expression("pool", "Gt", "1")), False),
        (terms(expression("pool", "Exists"), expression("zone", "Exists")), False),
        (terms(fields=expression("metadata.name", "In", "gpu-1")), True),
        (terms(fields=expression("metadata.name", "In", "gpu-2")), False),
        (terms(), False),
    ],
)
def test_node_affinity(affinity: Json, matches: bool) -> None:
    worker = WorkerSpec.model_validate({"affinity": affinity, "tolerations": TEAM})
    assert (obstacle(NodeDevices.parse(LIVE), worker, GPU, 1) is None) is matches


def test_one_of_several_terms_is_enough() -> None:
    affinity = terms(expression("zone", "Exists"))
    required = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    required["nodeSelectorTerms"].append({"matchExpressions": [expression("pool", "Exists")]})
    worker = WorkerSpec.model_validate({"affinity": affinity, "tolerations": TEAM})
    assert obstacle(NodeDevices.parse(LIVE), worker, GPU, 1) is None


@pytest.mark.parametrize(("count", "fits"), [(8, True), (9, False)])
def test_a_worker_needs_all_its_devices_on_one_node(count: int, fits: bool) -> None:
    worker = WorkerSpec.model_validate({"tolerations": TEAM})
    assert (obstacle(NodeDevices.parse(LIVE), worker, GPU, count) is None) is fits
