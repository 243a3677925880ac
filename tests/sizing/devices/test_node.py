"""Labels as gpu-feature-discovery's and AMD's node labeller's documentation and code show them."""

import pytest

from kvtide_sizing.devices.device import DeviceKind
from kvtide_sizing.devices.node import device_of_node
from kvtide_sizing.errors import UnknownDevice

MIB, GIB = 2**20, 2**30

A100 = {
    "nvidia.com/gpu.count": "8",
    "nvidia.com/gpu.memory": "40537",  # an older driver: the label wins over the list's 40960
    "nvidia.com/gpu.product": "A100-SXM4-40GB",
    "nvidia.com/gpu.replicas": "1",
}
A100_SINGLE = {
    "nvidia.com/mig.strategy": "single",
    "nvidia.com/gpu.count": "56",
    "nvidia.com/gpu.memory": "4864",
    "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb",
}
A100_MIXED = {
    "nvidia.com/mig.strategy": "mixed",
    "nvidia.com/gpu.memory": "81920",
    "nvidia.com/gpu.product": "NVIDIA-A100-80GB-PCIe",
    "nvidia.com/mig-3g.40gb.memory": "40192",
    "nvidia.com/mig-3g.40gb.product": "NVIDIA-A100-80GB-PCIe-MIG-3g.40gb",
    "nvidia.com/mig-3g.40gb.replicas": "1",
}
MI300X = {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM", "amd.com/gpu.vram": "192G"}


@pytest.mark.parametrize(
    ("labels", "resource_name", "name", "memory_bytes"),
    [
        (A100, "nvidia.com/gpu", "a100-40gb", 40_537 * MIB),
        ({"nvidia.com/gpu.product": "Tesla-T4"}, "nvidia.com/gpu", "t4", 15_360 * MIB),
        (
            {"nvidia.com/gpu.product": "Tesla-P4", "nvidia.com/gpu.memory": "7680"},
            "nvidia.com/gpu",
            "tesla-p4",
            7_680 * MIB,
        ),
        ({"nvidia.com/gpu.memory": "7680"}, "nvidia.com/gpu", "gpu", 7_680 * MIB),
        (A100_SINGLE, "nvidia.com/gpu", "a100-40gb/1g.5gb", 4_864 * MIB),
        (A100_MIXED, "nvidia.com/mig-3g.40gb", "a100-80gb-pcie/3g.40gb", 40_192 * MIB),
        (A100_MIXED, "nvidia.com/gpu", "a100-80gb-pcie", 81_920 * MIB),
        # the slice's own labels are not there: the GPU's product and the list's memory
        ({"nvidia.com/gpu.product": "NVIDIA-H200"}, "nvidia.com/mig-1g.18gb", "h200/1g.18gb", 16 * GIB),
        ({"nvidia.com/gpu.product": "NVIDIA-H200"}, "nvidia.com/mig-1g.18gb.me", "h200/1g.18gb", 16 * GIB),
        # not in the list, but the label tells
        (
            {"nvidia.com/gpu.product": "NVIDIA-B300", "nvidia.com/mig-1g.34gb.memory": "34000"},
            "nvidia.com/mig-1g.34gb",
            "nvidia-b300/1g.34gb",
            34_000 * MIB,
        ),
        (
            {"nvidia.com/gpu.product": "NVIDIA-H200", "nvidia.com/mig-5g.99gb.memory": "90000"},
            "nvidia.com/mig-5g.99gb",
            "h200/5g.99gb",
            90_000 * MIB,
        ),
        (MI300X, "amd.com/gpu", "mi300x", 206_141_652_992),  # exactly, though the label rounds to 192 GiB
        # 64 GiB to the nearest: at least 63.5
        ({"amd.com/gpu.vram": "64G"}, "amd.com/gpu", "gpu", 63 * GIB + GIB // 2),
        # an eighth of an MI300X, so not the whole one's memory
        (
            MI300X | {"amd.com/compute-memory-partition": "cpx_nps4", "amd.com/gpu.vram": "24G"},
            "amd.com/gpu",
            "amd_instinct_mi300x_oam",
            23 * GIB + GIB // 2,
        ),
    ],
)
def test_a_node_s_labels_tell_its_device(
    labels: dict[str, str], resource_name: str, name: str, memory_bytes: int
) -> None:
    device = device_of_node(labels, {"cpu": "64", resource_name: "8"}, resource_name)

    assert device is not None
    assert (device.name, device.memory_bytes) == (name, memory_bytes)
    assert (device.kind, device.count) == (DeviceKind.GPU, 1)


def test_what_the_list_knows_of_a_product_comes_with_it() -> None:
    whole = device_of_node(A100, {"nvidia.com/gpu": "8"}, "nvidia.com/gpu")
    a_slice = device_of_node(A100_SINGLE, {"nvidia.com/gpu": "56"}, "nvidia.com/gpu")

    assert whole is not None
    assert a_slice is not None
    assert whole.bandwidth_bytes_per_s == 1_555 * 10**9
    assert a_slice.bandwidth_bytes_per_s == 1_555 * 10**9 // 8


@pytest.mark.parametrize(
    ("product", "resource_name"),
    [("NVIDIA-A10G-SHARED", "nvidia.com/gpu"), ("NVIDIA-A10G", "nvidia.com/gpu.shared")],  # not renamed, renamed
)
def test_of_a_shared_gpu_a_replica_counts_on_its_part_alone(product: str, resource_name: str) -> None:
    labels = {
        "nvidia.com/gpu.product": product,
        "nvidia.com/gpu.memory": "23028",
        "nvidia.com/gpu.replicas": "4",
    }

    device = device_of_node(labels, {resource_name: "4"}, resource_name)

    assert device is not None
    assert (device.name, device.memory_bytes) == ("a10g", 5_757 * MIB)


@pytest.mark.parametrize("allocatable", [{}, {"nvidia.com/gpu": "0"}, {"nvidia.com/mig-1g.5gb": "7"}])
def test_a_node_without_the_resource_has_no_device(allocatable: dict[str, str]) -> None:
    assert device_of_node(A100, allocatable, "nvidia.com/gpu") is None


@pytest.mark.parametrize(
    ("labels", "resource_name", "says"),
    [
        ({}, "nvidia.com/gpu", "nvidia.com/gpu.memory or nvidia.com/gpu.product would"),
        ({"nvidia.com/gpu.product": "Tesla-P4"}, "nvidia.com/gpu", "nvidia.com/gpu.memory .* write device.memory"),
        ({}, "nvidia.com/mig-1g.5gb", "nvidia.com/mig-1g.5gb.memory"),
        (
            {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-INVALID", "nvidia.com/gpu.memory": "0"},
            "nvidia.com/gpu",
            "not of one kind",
        ),
        ({"nvidia.com/gpu.memory": "much"}, "nvidia.com/gpu", "label nvidia.com/gpu.memory of the node is 'much'"),
        ({}, "amd.com/gpu", "amd.com/gpu.vram"),
        (
            {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM", "amd.com/compute-memory-partition": "cpx_nps1"},
            "amd.com/gpu",
            "amd.com/gpu.vram",
        ),
        (A100, "habana.ai/gaudi", "no labels are known for the memory of habana.ai/gaudi"),
    ],
)
def test_a_node_whose_memory_is_not_labelled_is_told_from_one_without(
    labels: dict[str, str], resource_name: str, says: str
) -> None:
    with pytest.raises(UnknownDevice, match=says):
        device_of_node(labels, {resource_name: "1"}, resource_name)
