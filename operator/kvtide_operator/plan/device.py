"""The device that a worker is planned for: what the spec says, else what the nodes have, else a container's limit."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import ClassVar

from kvtide_operator.api.spec import DeviceKind, LLMDeploymentSpec
from kvtide_operator.plan.nodes import NAMED, NodeDevices, obstacle, through_dra_alone
from kvtide_sizing.devices import mig
from kvtide_sizing.devices.device import Device, device_named, device_of
from kvtide_sizing.errors import SizingError, UnknownDevice
from kvtide_sizing.quantity import MIB, format_bytes, parse_quantity

# Labels that tell nodes with one device from nodes with another, the most telling first.
_TELLING = ("nvidia.com/gpu.product", "nvidia.com/gpu.memory", "amd.com/gpu.product-name", "kubernetes.io/hostname")

_NOT_GIVEN = "device.memory is not given, and"
_MIG_RESOURCE = "nvidia.com/mig-"


class InvalidDevice(SizingError):
    """A device that the spec leaves open or contradicts itself about."""

    reason: ClassVar[str] = "InvalidDevice"


class NoDevice(SizingError):
    """No node on which a worker could run has the device."""

    reason: ClassVar[str] = "NoDevice"


class DeviceMemoryUnknown(SizingError):
    """Neither the spec nor any node says how much memory the device has."""

    reason: ClassVar[str] = "DeviceMemoryUnknown"


def needs_nodes(spec: LLMDeploymentSpec) -> bool:
    """Whether the device's memory stands on the nodes, if anywhere: the spec does not say it."""
    return spec.device.kind is DeviceKind.GPU and spec.device.memory is None


def resolve_device(spec: LLMDeploymentSpec, nodes: Sequence[NodeDevices] | None) -> Device:
    """The device of one worker; of several sizes among the nodes, the smallest, which every one of them holds.

    nodes: all of the cluster; None where they may not be read.
    Raises InvalidDevice, InvalidQuantity, NoDevice or DeviceMemoryUnknown.
    """
    if spec.device.kind is DeviceKind.CPU:
        found = device_named(f"cpu:{container_memory(spec)}")
    elif spec.device.memory is not None:
        found = device_named(f"gpu:{spec.device.memory}")
    else:
        found = _told_or_named(spec, nodes)
    return replace(found, count=spec.device.count)


def _told_or_named(spec: LLMDeploymentSpec, nodes: Sequence[NodeDevices] | None) -> Device:
    """What the nodes tell; of a MIG slice, where none does, what its name says: the least of any GPU that has it."""
    try:
        return min((device for _, device in _devices(spec, nodes)[0]), key=_by_size)
    except DeviceMemoryUnknown:
        named = slice_named(spec.device.resource_name)
        if named is None:
            raise
        return named


def slice_named(resource_name: str) -> Device | None:
    """The MIG slice that a resource such as nvidia.com/mig-1g.10gb is named after, None for any other resource.

    GPUs cut a profile of one name to slightly different sizes: the smallest that is known counts.
    """
    if not resource_name.startswith(_MIG_RESOURCE):
        return None
    profile = mig.without_media_extension(resource_name.removeprefix(_MIG_RESOURCE).removesuffix(".shared"))
    cuts = (geometry.profiles.get(profile) for geometry in mig.GEOMETRIES.values())
    sizes = [cut.memory_mib for cut in cuts if cut is not None and cut.memory_mib is not None]
    return device_of(f"mig-{profile}", min(sizes) * MIB) if sizes else None


def container_memory(spec: LLMDeploymentSpec) -> str:
    """The memory limit of a worker on the CPU, as the user writes it. Raises InvalidDevice and InvalidQuantity."""
    resources = spec.worker.resources
    limit = (resources.limits or {}).get("memory") if resources else None
    memory = spec.device.memory
    if memory is None and limit is None:
        raise InvalidDevice(
            "on a CPU the memory is the container's limit, and there is none: write device.memory, such as 2Gi,"
            " or worker.resources.limits.memory"
        )
    if memory is not None and limit is not None and parse_quantity(memory) != parse_quantity(str(limit)):
        raise InvalidDevice(
            f"device.memory {memory} and worker.resources.limits.memory {limit} are both the container's limit,"
            f" and differ: leave one of them out"
        )
    return memory if memory is not None else str(limit)


def device_warnings(spec: LLMDeploymentSpec, nodes: Sequence[NodeDevices] | None) -> tuple[str, ...]:
    """What a person should know of a device that was found on nodes: that there are others, or nodes that do not tell.

    Raises what `resolve_device` raises.
    """
    if not needs_nodes(spec):
        return ()
    try:
        found, silent = _devices(spec, nodes)
    except DeviceMemoryUnknown:
        named = slice_named(spec.device.resource_name)
        if named is None:
            raise
        size = format_bytes(named.memory_bytes)
        return (f"no node tells the memory of {spec.device.resource_name}: planned for {size}, the least of that name",)
    warnings = [_size_warning(found)] if len({device.memory_bytes for _, device in found}) > 1 else []
    if silent:
        warnings.append(f"not planned for {_listed(node.name for node, _ in silent)}: {silent[0][1]}")
    return tuple(warnings)


def too_small(spec: LLMDeploymentSpec, nodes: Sequence[NodeDevices] | None) -> tuple[str, tuple[str, ...]] | None:
    """A label and its values by which to keep workers from nodes whose device has less than the spec says.

    None where there are no such nodes, or none that is large enough, or no label that tells them apart: then the
    worker finds out at its start, and says so.
    """
    if spec.device.kind is not DeviceKind.GPU or spec.device.memory is None or nodes is None:
        return None
    wanted, name = parse_quantity(spec.device.memory), spec.device.resource_name
    small: list[NodeDevices] = []
    large: list[NodeDevices] = []
    for node in nodes:
        if obstacle(node, spec.worker, name, spec.device.count) is not None:
            continue
        try:
            device = node.device(name)
        except UnknownDevice:
            continue
        if device is not None:
            (small if device.memory_bytes < wanted else large).append(node)
    if not small or not large:
        return None
    for key in _TELLING:
        values = {node.labels.get(key) for node in small}
        if None not in values and not values & {node.labels.get(key) for node in large}:
            return key, tuple(sorted(str(value) for value in values))
    return None


def _size_warning(found: Sequence[tuple[NodeDevices, Device]]) -> str:
    kinds = sorted({device for _, device in found}, key=_by_size)
    smallest, largest = kinds[0], kinds[-1]
    counted = ", ".join(
        f"{kind.name} of {format_bytes(kind.memory_bytes)} ({_nodes(sum(device == kind for _, device in found))})"
        for kind in kinds
    )
    wanted = [node for node, device in found if device.memory_bytes == largest.memory_bytes]
    others = [node for node, device in found if device.memory_bytes != largest.memory_bytes]
    return (
        f"workers may run on {counted}: planned for {format_bytes(smallest.memory_bytes)}, which each of them has;"
        f" to plan for {format_bytes(largest.memory_bytes)}, pin the workers with worker.nodeSelector"
        f" {_telling_label(wanted, others)}"
    )


def _by_size(device: Device) -> tuple[int, str]:
    return device.memory_bytes, device.name


def _devices(
    spec: LLMDeploymentSpec, nodes: Sequence[NodeDevices] | None
) -> tuple[list[tuple[NodeDevices, Device]], list[tuple[NodeDevices, UnknownDevice]]]:
    """The nodes that a worker could be scheduled to, each with its device, and those whose labels do not tell it.

    There is at least one of the first.
    """
    name = spec.device.resource_name
    found, silent = [], []
    for node in _open_nodes(spec, nodes):
        try:
            device = node.device(name)
        except UnknownDevice as error:
            silent.append((node, error))
            continue
        if device is not None:
            found.append((node, device))
    if not found:
        raise DeviceMemoryUnknown(
            f"{_NOT_GIVEN} {_listed(node.name for node, _ in silent)} would take a worker, but {silent[0][1]}"
        )
    return found, silent


def _open_nodes(spec: LLMDeploymentSpec, nodes: Sequence[NodeDevices] | None) -> list[NodeDevices]:
    """The nodes with the device that a worker could be scheduled to, at least one."""
    name, count = spec.device.resource_name, spec.device.count
    if nodes is None:
        raise DeviceMemoryUnknown(
            f"{_NOT_GIVEN} the operator has no right to list nodes, whose labels would tell it (where it serves some"
            f" namespaces only, it never has): write device.memory, such as 40Gi"
        )
    having = [node for node in nodes if node.devices(name) > 0]
    if not having:
        offered = through_dra_alone(nodes, name)
        if offered:
            raise NoDevice(f"{_NOT_GIVEN} of {_nodes(len(nodes))} none has {name} to allocate: {offered}")
        raise NoDevice(
            f"{_NOT_GIVEN} of {_nodes(len(nodes))} none has {name} to allocate: add a node whose device plugin offers"
            f" it, or write device.memory, such as 40Gi, to plan before there is one"
        )
    obstacles = [(node, obstacle(node, spec.worker, name, count)) for node in having]
    found = [node for node, why in obstacles if why is None]
    if not found:
        raise NoDevice(
            f"{_NOT_GIVEN} no node with {name} would take a worker:"
            f" {_listed(f'{node.name} {why}' for node, why in obstacles)}; change that, or write device.memory, such"
            f" as 40Gi, to plan all the same"
        )
    return found


def _telling_label(wanted: Sequence[NodeDevices], others: Sequence[NodeDevices]) -> str:
    """A label that one of the wanted nodes has, and none of the others."""
    for key in _TELLING:
        value = wanted[0].labels.get(key)
        if value is not None and all(node.labels.get(key) != value for node in others):
            return f"{key}: {value}"
    return f"and a label of your own that {wanted[0].name} has and the others have not"


def _listed(parts: Iterable[str]) -> str:
    named = list(parts)
    more = len(named) - NAMED
    return ", ".join(named[:NAMED]) + (f" and {more} more" if more > 0 else "")


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"
