"""Devices as a real API server tells of them: ResourceSlices made by hand, as NVIDIA's DRA driver would write them."""

import json
from collections.abc import Iterator

import pytest

from devcluster.demo.cluster import Cluster
from tests.cluster.conftest import NAMESPACE, Resource, apply, condition, example, status
from tests.cluster.faults import ever

NAME, SLICE = "devices", "hand-made-gpu.nvidia.com"
GPU = "nvidia.com/gpu"
A100 = {
    "name": "gpu-0",
    "attributes": {
        "type": {"string": "gpu"},
        "uuid": {"string": "GPU-650f49e1-eb8f-4d88-8756-776ef8f06151"},
        "productName": {"string": "NVIDIA A100-SXM4-40GB"},
        "brand": {"string": "Nvidia"},
        "architecture": {"string": "Ampere"},
        "cudaComputeCapability": {"version": "8.0.0"},
    },
    "capacity": {"memory": {"value": "40Gi"}},
}
# Planned, and never run: there is no such device.
SPEC = {"device": {"kind": "GPU"}, "autoscaling": {"mode": "Off"}, "replicas": 0}


@pytest.fixture
def node(operator: Cluster) -> Iterator[str]:
    """The node's name, for which a driver offers one device."""
    name: str = operator.items("nodes")[0]["metadata"]["name"]
    offered = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": SLICE},
        "spec": {
            "driver": "gpu.nvidia.com",
            "nodeName": name,
            "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
            "devices": [A100],
        },
    }
    operator.kubectl("apply", "--validate=strict", "-f", "-", stdin=json.dumps(offered))
    yield name
    operator.kubectl("delete", "llmd", NAME, "-n", NAMESPACE, "--ignore-not-found", "--wait")
    operator.kubectl("delete", "resourceslice", SLICE)
    give(operator, name, None)


def give(cluster: Cluster, node: str, count: str | None) -> None:
    """Has the node advertise devices, as https://kubernetes.io/docs/tasks/administer-cluster/extended-resource-node/."""
    patch = json.dumps({"status": {"capacity": {GPU: count}, "allocatable": {GPU: count}}})
    cluster.kubectl("patch", "node", node, "--subresource=status", "--type=merge", "-p", patch)


def gpu_example() -> Resource:
    resource = example(NAME, SPEC)
    resource["spec"]["device"].pop("memory")
    return resource


def test_what_is_offered_through_dra_alone_is_named_and_else_tells_its_memory(operator: Cluster, node: str) -> None:
    apply(operator, gpu_example())
    said = ever(operator, NAME, "Planned", "NoDevice", timeout_s=60)
    assert f"{node} has 1 NVIDIA A100-SXM4-40GB through DRA alone" in said["message"]
    assert "not by ResourceClaims" in said["message"]
    # With a device plugin beside it, and no label that tells the memory, the slice does.
    give(operator, node, "1")
    said = ever(operator, NAME, "Planned", "Fits", timeout_s=120)
    plan = status(operator, NAME)["plan"]
    assert (plan["device"], plan["memory"]["deviceBytes"]) == ("a100-40gb", 40 << 30)
    assert condition(operator, NAME, "Ready")["reason"] == "ScaledToZero"
