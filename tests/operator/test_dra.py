"""Devices that NVIDIA's driver offers through ResourceSlices, in the form in which it writes them."""

from collections.abc import Callable
from typing import Any

import pytest

from kvtide_operator.api.resource import LLMDeployment
from kvtide_operator.api.worker import WorkerSpec
from kvtide_operator.plan.device import NoDevice, device_warnings, resolve_device
from kvtide_operator.plan.dra import OfferedDevice, offered_devices
from kvtide_operator.plan.nodes import NodeDevices
from kvtide_operator.plan.room import free_devices
from kvtide_sizing.errors import UnknownDevice

Json = dict[str, Any]
Make = Callable[..., LLMDeployment]
MIB = 2**20
GPU, MIG = "nvidia.com/gpu", "nvidia.com/mig-1g.5gb"


def device(product: str, memory: str, kind: str = "gpu", profile: str = "", **more: Any) -> Json:
    """As deviceinfo.go of k8s-dra-driver-gpu writes one; what it says beside is left out but for one of each type."""
    attributes: Json = {
        "type": {"string": kind},
        "productName": {"string": product},
        "cudaComputeCapability": {"version": "8.0.0"},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"},
    }
    if profile:
        attributes["profile"] = {"string": profile}
    return {"name": "gpu-0", "attributes": attributes, "capacity": {"memory": {"value": memory}}, **more}


def resource_slice(*devices: Json, node: str | None = "n", generation: int = 1, **spec: Any) -> Json:
    pool = {"name": node or "rack", "generation": generation, "resourceSliceCount": 1}
    place: Json = {"nodeName": node} if node else {"allNodes": True}
    return {"spec": {"driver": "gpu.nvidia.com", "pool": pool, **place, "devices": list(devices), **spec}}


A100 = device("NVIDIA A100-SXM4-40GB", "40Gi")
SLICE = device("NVIDIA A100-SXM4-40GB", "4864Mi", "mig", "1g.5gb")
L4 = device("NVIDIA L4", "24152899584")  # 23034 MiB, as nvidia-smi shows them


@pytest.mark.parametrize(
    ("slices", "offered"),
    [
        ([resource_slice(A100)], [(GPU, "NVIDIA A100-SXM4-40GB", 40960)]),
        ([resource_slice(SLICE)], [(MIG, "NVIDIA A100-SXM4-40GB", 4864)]),
        ([resource_slice(L4, L4)], [(GPU, "NVIDIA L4", 23034)] * 2),
        # one pool in two slices, and what is left over from before a change
        ([resource_slice(A100, generation=3), resource_slice(L4, generation=3), resource_slice(L4, generation=2)],
         [(GPU, "NVIDIA A100-SXM4-40GB", 40960), (GPU, "NVIDIA L4", 23034)]),
        # as resource.k8s.io/v1beta1 has it
        ([resource_slice({"name": "gpu-0", "basic": {key: L4[key] for key in ("attributes", "capacity")}})],
         [(GPU, "NVIDIA L4", 23034)]),
        ([resource_slice({**L4, "taints": [{"key": "xid", "effect": "NoSchedule"}]}, L4)],
         [(GPU, "NVIDIA L4", 23034)]),
        ([resource_slice({**L4, "taints": [{"key": "note", "effect": "None"}]})], [(GPU, "NVIDIA L4", 23034)]),
        # other drivers' devices, those of no one node, of virtual machines, and of no memory
        ([resource_slice(L4, driver="gpu.example.com")], []),
        ([resource_slice(L4, node=None)], []),
        ([resource_slice(device("NVIDIA L4", "22Gi", "vfio"))], []),
        ([resource_slice({**L4, "capacity": {}})], []),
        ([{"spec": {"driver": "gpu.nvidia.com", "nodeName": "n", "pool": {"name": "n", "generation": 1}}}], []),
    ],
)  # fmt: skip
def test_what_a_driver_offers(slices: list[Json], offered: list[tuple[str, str, int]]) -> None:
    found = offered_devices(slices).get("n", ())
    assert list(found) == [OfferedDevice("n", name, product, mib * MIB) for name, product, mib in offered]


def node(name: str, *slices: Json, allocatable: Json | None = None, labels: Json | None = None) -> NodeDevices:
    return NodeDevices(name, labels or {}, allocatable or {}, offered=offered_devices(slices).get("n", ()))


def test_labels_come_first_and_where_they_are_silent_the_slice_tells(make_resource: Make) -> None:
    spec = make_resource(device={"kind": "GPU"}).spec
    silent = node("silent", resource_slice(A100, L4), allocatable={GPU: "2"})
    found = resolve_device(spec, (silent,))
    assert (found.name, found.memory_bytes) == ("l4", 23034 * MIB)  # the least of what a worker may be given
    assert device_warnings(spec, (silent,)) == ()
    told = node("told", resource_slice(L4), allocatable={GPU: "1"}, labels={"nvidia.com/gpu.memory": "20000"})
    assert resolve_device(spec, (told,)).memory_bytes == 20000 * MIB
    sliced = make_resource(device={"resourceName": MIG}).spec
    found = resolve_device(sliced, (node("sliced", resource_slice(SLICE, A100), allocatable={MIG: "7"}),))
    assert (found.name, found.memory_bytes) == ("a100-40gb/1g.5gb", 4864 * MIB)


def test_a_slice_of_another_kind_tells_nothing() -> None:
    with pytest.raises(UnknownDevice, match="its labels do not tell"):
        node("silent", resource_slice(SLICE), allocatable={GPU: "1"}).device(GPU)


def test_what_is_offered_through_dra_alone_is_refused_by_name(make_resource: Make) -> None:
    """A worker asks by the name of an extended resource: a ResourceClaim would be another way to ask."""
    nodes = (node("gpu-1", resource_slice(A100, A100)), node("gpu-2", resource_slice(L4)), node("plain"))
    with pytest.raises(NoDevice) as refused:
        resolve_device(make_resource(device={"kind": "GPU"}).spec, nodes)
    said = str(refused.value)
    assert "of 3 nodes none has nvidia.com/gpu to allocate" in said
    assert "gpu-1 has 2 NVIDIA A100-SXM4-40GB, gpu-2 has 1 NVIDIA L4 through DRA alone" in said
    assert "not by ResourceClaims" in said
    assert "extendedResourceName nvidia.com/gpu" in said
    worker = WorkerSpec()
    told = free_devices(nodes, [], worker, GPU)
    assert told.startswith("no node that would take a worker has nvidia.com/gpu; gpu-1 has 2 NVIDIA A100-SXM4-40GB")
    # Those that a device plugin offers as well are asked for by that name.
    both = NodeDevices("both", {}, {GPU: "2"}, ready=True, offered=offered_devices([resource_slice(L4, L4)])["n"])
    assert "DRA" not in free_devices([both], [], worker, GPU)
