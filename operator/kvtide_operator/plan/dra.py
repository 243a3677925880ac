"""Devices that nodes offer through dynamic resource allocation, as their driver writes them into ResourceSlices.

    driver: gpu.nvidia.com
    nodeName: gpu-1
    pool: {name: gpu-1, generation: 2, resourceSliceCount: 1}
    devices:
    - name: gpu-0
      attributes: {type: {string: gpu}, productName: {string: NVIDIA A100-SXM4-40GB}, …}
      capacity: {memory: {value: 40Gi}}
    - name: gpu-1-mig-19-0-1
      attributes: {type: {string: mig}, profile: {string: 1g.5gb}, productName: {string: NVIDIA A100-SXM4-40GB}, …}
      capacity: {memory: {value: 4864Mi}, …}

That is the spec in resource.k8s.io/v1; v1beta1 has attributes and capacity one level deeper, under `basic`. Attributes
and capacities are NVIDIA's (k8s-dra-driver-gpu, cmd/gpu-kubelet-plugin/deviceinfo.go).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kvtide_operator.plan.amount import amount
from kvtide_sizing.devices.catalog import name_of_product
from kvtide_sizing.devices.device import Device, device_of
from kvtide_sizing.devices.mig import without_media_extension

NVIDIA_DRIVER = "gpu.nvidia.com"
_WHOLE, _SLICE = "gpu", "mig"
_GPU_RESOURCE, _MIG_RESOURCE = "nvidia.com/gpu", "nvidia.com/mig-"
# A taint with another effect keeps nobody away.
_REPELLING = ("NoSchedule", "NoExecute")
_Live = Mapping[str, Any]


@dataclass(frozen=True)
class OfferedDevice:
    """A GPU or a MIG slice of a node.

    resource_name:  what NVIDIA's device plugin calls such a device
    """

    node: str
    resource_name: str
    product: str
    memory_bytes: int

    def device(self) -> Device:
        """The device as plans know it."""
        name = name_of_product(self.product) or self.product.lower().replace(" ", "-") or "gpu"
        profile = self.resource_name.removeprefix(_MIG_RESOURCE) if self.resource_name != _GPU_RESOURCE else ""
        return device_of(f"{name}/{profile}" if profile else name, self.memory_bytes)


def offered_devices(slices: Iterable[_Live]) -> dict[str, tuple[OfferedDevice, ...]]:
    """What NVIDIA's driver offers, by the node's name.

    Of a pool only the slices of its newest generation count: the others are left over from a change. A device with a
    taint that keeps pods away is none; neither is one that is handed to virtual machines (type vfio).
    """
    pools: dict[tuple[str, str], list[_Live]] = {}
    for live in slices:
        spec = live.get("spec") or {}
        if spec.get("driver") == NVIDIA_DRIVER and spec.get("nodeName"):
            pools.setdefault((spec["nodeName"], (spec.get("pool") or {}).get("name", "")), []).append(spec)
    found: dict[str, list[OfferedDevice]] = {}
    for (node, _), specs in sorted(pools.items()):
        newest = max(_generation(spec) for spec in specs)
        for spec in specs:
            for one in spec.get("devices") or [] if _generation(spec) == newest else []:
                device = _read(node, one)
                if device is not None:
                    found.setdefault(node, []).append(device)
    return {node: tuple(devices) for node, devices in found.items()}


def only_offered(offered: Iterable[OfferedDevice], resource_name: str) -> str:
    """Of a node that has such devices through DRA alone, how many and which: '8 NVIDIA L4'. Empty where it has none."""
    products = [one.product for one in offered if one.resource_name == resource_name]
    return ", ".join(f"{products.count(product)} {product or 'GPU'}" for product in sorted(set(products)))


def _generation(spec: _Live) -> int:
    return int((spec.get("pool") or {}).get("generation", 0))


def _read(node: str, one: _Live) -> OfferedDevice | None:
    told = one.get("basic") or one
    if any(taint.get("effect") in _REPELLING for taint in told.get("taints") or []):
        return None
    kind, profile = _text(told, "type"), without_media_extension(_text(told, "profile"))
    memory = amount(((told.get("capacity") or {}).get("memory") or {}).get("value"))
    if memory is None or kind not in (_WHOLE, _SLICE) or (kind == _SLICE and not profile):
        return None
    resource_name = _GPU_RESOURCE if kind == _WHOLE else f"{_MIG_RESOURCE}{profile}"
    return OfferedDevice(node, resource_name, _text(told, "productName"), int(memory))


def _text(told: _Live, attribute: str) -> str:
    return str(((told.get("attributes") or {}).get(attribute) or {}).get("string") or "")
