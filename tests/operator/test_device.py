"""Which device a worker is planned for: said in the spec, told by the nodes, or the container's limit."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvtide_operator.api.resource import LLMDeployment
from kvtide_operator.plan.device import (
    DeviceMemoryUnknown,
    InvalidDevice,
    NoDevice,
    container_memory,
    device_warnings,
    needs_nodes,
    resolve_device,
    too_small,
)
from kvtide_operator.plan.nodes import NodeDevices, Taint
from kvtide_sizing.errors import SizingError

Json = dict[str, Any]
Make = Callable[..., LLMDeployment]
MIB = 2**20
GPU = "nvidia.com/gpu"
# As GPU feature discovery labels them; MiB as nvidia-smi shows them.
A100 = {"nvidia.com/gpu.memory": "40960", "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"}
L4 = {"nvidia.com/gpu.memory": "23034", "nvidia.com/gpu.product": "NVIDIA-L4"}
SLICE = {"nvidia.com/mig-1g.5gb.memory": "4864", "nvidia.com/mig-1g.5gb.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"}


def node(name: str, labels: Json, gpus: int = 1, resource: str = GPU, **more: Any) -> NodeDevices:
    return NodeDevices(name, labels, {resource: str(gpus), "cpu": "8"}, **more)


NODES = (node("big", {**A100, "pool": "train"}), node("small", L4), NodeDevices("plain", {}, {"cpu": "8"}))


@pytest.mark.parametrize(
    ("device", "worker", "memory_bytes"),
    [
        # the spec wins over what the nodes have
        ({"kind": "GPU", "memory": "40Gi"}, {}, 40 * 1024 * MIB),
        ({"kind": "CPU", "memory": "2Gi"}, {}, 2048 * MIB),
        # the smallest of those that a worker may run on
        ({"kind": "GPU"}, {}, 23034 * MIB),
        ({}, {"nodeSelector": {"pool": "train"}}, 40960 * MIB),
        ({"kind": "GPU"}, {"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-L4"}}, 23034 * MIB),
        # a container's limit, in every way to write one
        ({"kind": "CPU"}, {"resources": {"limits": {"memory": "1536Mi"}}}, 1536 * MIB),
        ({"kind": "CPU"}, {"resources": {"limits": {"memory": 2_000_000_000}}}, 2_000_000_000),
        ({"kind": "CPU", "memory": "2Gi"}, {"resources": {"limits": {"memory": "2048Mi"}}}, 2048 * MIB),
        # of a GPU the container's limit is another memory
        ({"kind": "GPU", "memory": "40Gi"}, {"resources": {"limits": {"memory": "8Gi"}}}, 40 * 1024 * MIB),
    ],
)
def test_the_memory_that_is_planned_for(make_resource: Make, device: Json, worker: Json, memory_bytes: int) -> None:
    spec = make_resource(device=device, worker=worker).spec
    found = resolve_device(spec, NODES)
    assert (found.memory_bytes, found.kind, found.count) == (memory_bytes, device.get("kind", "GPU"), 1)


def test_a_mig_slice_is_a_device_of_its_own(make_resource: Make) -> None:
    spec = make_resource(device={"resourceName": "nvidia.com/mig-1g.5gb"}).spec
    sliced = node("sliced", {**A100, **SLICE}, 7, "nvidia.com/mig-1g.5gb")
    assert resolve_device(spec, (*NODES, sliced)).memory_bytes == 4864 * MIB


@pytest.mark.parametrize("nodes", [None, (node("silent", {}, 7, "nvidia.com/mig-1g.10gb"),)], ids=["unread", "silent"])
def test_where_no_node_tells_a_mig_slice_has_what_its_name_says(
    make_resource: Make, nodes: tuple[NodeDevices, ...] | None
) -> None:
    spec = make_resource(device={"resourceName": "nvidia.com/mig-1g.10gb"}).spec
    # `nvidia-smi mig -lgip`: 9.50 GiB on an A100 of 80 GB, 9.75 on an H100, 9.62 as a double slice of 40 GB
    assert resolve_device(spec, nodes).memory_bytes == 9728 * MIB
    (warning,) = device_warnings(spec, nodes)
    assert "no node tells the memory of nvidia.com/mig-1g.10gb: planned for 9.50 GiB" in warning


def test_a_slice_that_nobody_has_measured_is_not_guessed(make_resource: Make) -> None:
    spec = make_resource(device={"resourceName": "nvidia.com/mig-1g.99gb"}).spec
    with pytest.raises(DeviceMemoryUnknown, match="no right to list nodes"):
        resolve_device(spec, None)


@pytest.mark.parametrize(
    ("memory", "worker", "nodes", "avoid"),
    [
        ("40Gi", {}, NODES, ("nvidia.com/gpu.product", ("NVIDIA-L4",))),
        ("20Gi", {}, NODES, None),  # both have it
        ("80Gi", {}, NODES, None),  # neither has: the plan is for a node that is yet to come
        ("40Gi", {"nodeSelector": {"pool": "train"}}, NODES, None),  # it cannot get to the small one
        ("40Gi", {}, None, None),
        # the same card with two memories: the label of the memory tells them apart
        (
            "40Gi",
            {},
            (node("whole", A100), node("half", {**A100, "nvidia.com/gpu.memory": "20480"})),
            ("nvidia.com/gpu.memory", ("20480",)),
        ),
    ],
)
def test_a_worker_keeps_off_devices_that_are_too_small_for_its_plan(
    make_resource: Make, memory: str, worker: Json, nodes: tuple[NodeDevices, ...] | None, avoid: Any
) -> None:
    assert too_small(make_resource(device={"memory": memory}, worker=worker).spec, nodes) == avoid


@pytest.mark.parametrize(
    ("device", "worker", "nodes", "error", "words"),
    [
        ({"kind": "CPU"}, {}, NODES, InvalidDevice, "write device.memory, such as 2Gi, or worker.resources"),
        (
            {"kind": "CPU", "memory": "2Gi"},
            {"resources": {"limits": {"memory": "3Gi"}}},
            NODES,
            InvalidDevice,
            "device.memory 2Gi and worker.resources.limits.memory 3Gi",
        ),
        ({}, {}, (), NoDevice, "of 0 nodes none has nvidia.com/gpu"),
        ({}, {}, NODES[2:], NoDevice, "of 1 node none has nvidia.com/gpu"),
        ({"resourceName": "amd.com/gpu"}, {}, NODES, NoDevice, "of 3 nodes none has amd.com/gpu"),
        ({}, {"nodeSelector": {"pool": "x"}}, NODES, NoDevice, "small has not the label pool=x of worker.nodeSelector"),
        ({"count": 2}, {}, NODES, NoDevice, "big has 1, a worker takes 2"),
        ({}, {}, (node("away", L4, unschedulable=True),), NoDevice, "away is cordoned"),
        (
            {},
            {},
            (node("mine", L4, taints=(Taint("team", "a", "NoSchedule"),)),),
            NoDevice,
            "mine has the taint team=a:NoSchedule",
        ),
        ({}, {}, (node("bare", {}),), DeviceMemoryUnknown, "nvidia.com/gpu.memory"),
        ({}, {}, (node("odd", {"nvidia.com/gpu.memory": "lots"}),), DeviceMemoryUnknown, "'lots'"),
        ({}, {}, None, DeviceMemoryUnknown, "no right to list nodes"),
    ],
)
def test_where_there_is_none_the_message_says_what_was_looked_for_and_what_would_do(
    make_resource: Make,
    device: Json,
    worker: Json,
    nodes: tuple[NodeDevices, ...] | None,
    error: type[SizingError],
    words: str,
) -> None:
    with pytest.raises(error) as raised:
        resolve_device(make_resource(device=device, worker=worker).spec, nodes)
    assert words in str(raised.value)
    assert "device.memory" in str(raised.value)


def test_nodes_are_needed_only_where_nothing_else_tells(make_resource: Make) -> None:
    needed = [make_resource(device=device).spec for device in ({}, {"kind": "GPU", "count": 2})]
    other = [make_resource(device=device).spec for device in ({"memory": "1Gi"}, {"kind": "CPU"})]
    assert [needs_nodes(spec) for spec in (*needed, *other)] == [True, True, False, False]


def test_of_several_sizes_the_plan_says_which_and_how_to_get_the_other(make_resource: Make) -> None:
    (warning,) = device_warnings(make_resource(device={}).spec, NODES)
    assert "l4 of 22.5 GiB (1 node)" in warning  # 23034 / 1024
    assert "a100-40gb of 40.0 GiB (1 node)" in warning
    assert "planned for 22.5 GiB" in warning
    assert "worker.nodeSelector nvidia.com/gpu.product: NVIDIA-A100-SXM4-40GB" in warning


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        # the same product in two sizes: the memory tells them apart
        ([("1", "V"), ("2", "V")], "nvidia.com/gpu.memory: 2"),
        ([("1", "A"), ("2", "B")], "nvidia.com/gpu.product: B"),
    ],
)
def test_the_label_to_pin_by_is_one_that_the_others_do_not_have(
    make_resource: Make, labels: list[tuple[str, str]], told: str
) -> None:
    nodes = tuple(
        node(f"n{memory}", {"nvidia.com/gpu.memory": memory, "nvidia.com/gpu.product": product})
        for memory, product in labels
    )
    (warning,) = device_warnings(make_resource(device={}).spec, nodes)
    assert warning.endswith(told)


def test_one_size_and_a_node_that_does_not_tell(make_resource: Make) -> None:
    spec = make_resource(device={}).spec
    assert device_warnings(spec, (node("a", L4), node("b", L4))) == ()
    (warning,) = device_warnings(spec, (node("a", L4), node("bare", {})))
    assert warning.startswith("not planned for bare: ")
    assert device_warnings(make_resource(device={"memory": "1Gi"}).spec, None) == ()


def test_the_limit_is_written_as_the_user_wrote_it(make_resource: Make) -> None:
    limited = {"resources": {"limits": {"memory": "1536Mi"}}}
    assert container_memory(make_resource(device={"kind": "CPU"}, worker=limited).spec) == "1536Mi"
    assert container_memory(make_resource(device={"kind": "CPU", "memory": "2Gi"}).spec) == "2Gi"


@st.composite
def clusters(draw: st.DrawFn) -> tuple[NodeDevices, ...]:
    """Up to six nodes; a label that is missing, a cordon, a taint and a pool each of their own."""
    return tuple(
        NodeDevices(
            f"n{index}",
            draw(st.fixed_dictionaries({"pool": st.sampled_from("ab")}))
            | draw(st.sampled_from([{}, *({"nvidia.com/gpu.memory": str(mib)} for mib in (4096, 23034, 81920))])),
            draw(st.sampled_from([{}, {GPU: "1"}, {GPU: "8"}])),
            draw(st.sampled_from([(), (Taint("team", "a", "NoSchedule"),)])),
            draw(st.booleans()),
        )
        for index in range(draw(st.integers(0, 6)))
    )


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(nodes=clusters(), pool=st.sampled_from([None, "a"]), tolerant=st.booleans())
def test_it_is_never_more_than_any_node_that_a_worker_may_get_has(
    make_resource: Make, nodes: tuple[NodeDevices, ...], pool: str | None, tolerant: bool
) -> None:
    worker = ({"nodeSelector": {"pool": pool}} if pool else {}) | (
        {"tolerations": [{"operator": "Exists"}]} if tolerant else {}
    )
    sizes = [
        int(found.labels["nvidia.com/gpu.memory"]) * MIB
        for found in nodes
        if "nvidia.com/gpu.memory" in found.labels
        and found.allocatable
        and not found.unschedulable
        and (pool is None or found.labels["pool"] == pool)
        and (tolerant or not found.taints)
    ]
    spec = make_resource(device={}, worker=worker).spec
    if not sizes:
        with pytest.raises(SizingError):
            resolve_device(spec, nodes)
        return
    assert resolve_device(spec, nodes).memory_bytes == min(sizes)
    assert any("planned for" in warning[:200] and "pin" in warning for warning in device_warnings(spec, nodes)) is (
        len(set(sizes)) > 1
    )
