"""What a Kubernetes node says of its devices, from its labels. No Kubernetes here: labels and resources are mappings.

NVIDIA's labels are gpu-feature-discovery's (k8s-device-plugin, docs/gpu-feature-discovery), after the resource's name:

    nvidia.com/gpu            nvidia.com/gpu.{memory,product,replicas}; with MIG strategy `single` they describe a slice
    nvidia.com/mig-1g.5gb     nvidia.com/mig-1g.5gb.{memory,product,replicas}, with MIG strategy `mixed`

AMD's are its node labeller's (k8s-device-plugin, cmd/k8s-node-labeller): amd.com/gpu.{vram,product-name}.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kvtide_sizing.devices.catalog import GPUS, name_of_product
from kvtide_sizing.devices.device import Device, DeviceKind, device_of
from kvtide_sizing.devices.mig import without_media_extension
from kvtide_sizing.errors import UnknownDevice
from kvtide_sizing.quantity import GIB, MIB

_NVIDIA = "nvidia.com/"
_MIG_RESOURCE = "nvidia.com/mig-"
_AMD = "amd.com/gpu"
_AMD_PARTITION = "amd.com/compute-memory-partition"
_WHOLE = "spx_nps1"


def device_of_node(labels: Mapping[str, str], allocatable: Mapping[str, str], resource_name: str) -> Device | None:
    """One device of resource_name on a node with these labels and allocatable resources; count is left at 1.

    None where the node has none of the resource. Raises UnknownDevice where it has some but its labels do not tell
    their memory: the message names the labels that would. The memory is one replica's: of a GPU that is shared
    between `replicas` pods, its part, as nothing keeps the others from theirs.
    """
    if allocatable.get(resource_name, "0") == "0":
        return None
    if resource_name.startswith(_NVIDIA):
        return _nvidia_device(labels, resource_name)
    if resource_name == _AMD:
        return _amd_device(labels)
    raise UnknownDevice(
        f"no labels are known for the memory of {resource_name}, only for nvidia.com/gpu, nvidia.com/mig-PROFILE and "
        f"amd.com/gpu; write device.memory"
    )


def _nvidia_device(labels: Mapping[str, str], resource_name: str) -> Device:
    prefix = resource_name.removesuffix(".shared")
    product = labels.get(f"{prefix}.product") or labels.get("nvidia.com/gpu.product", "")
    product, _, profile = product.removesuffix("-SHARED").partition("-MIG-")
    if profile == "INVALID":
        raise UnknownDevice(
            f"label {prefix}.product says that the node's MIG slices are not of one kind, which strategy `single` "
            f"needs; use strategy `mixed` and its resources nvidia.com/mig-PROFILE"
        )
    if prefix.startswith(_MIG_RESOURCE):
        profile = prefix.removeprefix(_MIG_RESOURCE)
    name = name_of_product(product) or product.lower() or "gpu"
    if profile:
        name = f"{name}/{without_media_extension(profile)}"
    memory_mib = _number(labels, f"{prefix}.memory")
    device = _device(name, memory_mib and memory_mib * MIB, resource_name, f"{prefix}.memory or {prefix}.product")
    return replace(device, memory_bytes=device.memory_bytes // (_number(labels, f"{prefix}.replicas") or 1))


def _amd_device(labels: Mapping[str, str]) -> Device:
    product = labels.get(f"{_AMD}.product-name", "")
    vram_gib = _number(labels, f"{_AMD}.vram", unit="G")
    whole = labels.get(_AMD_PARTITION, _WHOLE) == _WHOLE
    name = name_of_product(product)
    if name and whole and vram_gib in (None, round(GPUS[name].memory_mib * MIB / GIB)):
        return device_of(name, None)
    # The labeller rounds to the nearest GiB, so half of one may not be there.
    memory_bytes = vram_gib and vram_gib * GIB - GIB // 2
    return _device(product.lower() or "gpu", memory_bytes, _AMD, f"{_AMD}.vram or {_AMD}.product-name")


def _device(name: str, memory_bytes: int | None, resource_name: str, helpful: str) -> Device:
    try:
        return device_of(name, memory_bytes)
    except UnknownDevice:
        if memory_bytes is not None:  # a slice that is newer than the list: nothing but its memory is known
            return Device(name, DeviceKind.GPU, memory_bytes)
        raise UnknownDevice(
            f"the node has {resource_name}, but its labels do not tell how much memory one has; {helpful} would, "
            f"as the vendor's feature discovery sets them: install it, label the node, or write device.memory"
        ) from None


def _number(labels: Mapping[str, str], key: str, unit: str = "") -> int | None:
    """A positive number from a label; None for no label and for 0, which stands for "not known" or "not shared"."""
    text = labels.get(key)
    if text is None:
        return None
    digits = text.removesuffix(unit)
    if not digits.isdecimal():
        raise UnknownDevice(f"label {key} of the node is '{text}', not a number; correct it or write device.memory")
    return int(digits) or None
