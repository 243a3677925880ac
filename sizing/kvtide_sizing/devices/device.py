"""What a replica runs on: a kind, a memory and how many of it; and how a device is named."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from types import MappingProxyType

from kvtide_sizing.devices.catalog import GPUS
from kvtide_sizing.devices.mig import GEOMETRIES, mig_geometry
from kvtide_sizing.errors import InvalidQuantity, UnknownDevice
from kvtide_sizing.quantity import MIB, parse_quantity

__all__ = ["Device", "DeviceKind", "builtin_gpus", "device_named", "parse_quantity"]


class DeviceKind(enum.StrEnum):
    """What a device is. A CPU's memory is the container's limit."""

    CPU = "CPU"
    GPU = "GPU"


@dataclass(frozen=True)
class Device:
    """One kind of device of a replica: memory_bytes each, count of them.

    bandwidth_bytes_per_s:    peak of its memory, None where it is not known
    bf16_flops_per_s:         peak of its matrix units, dense; FP16 where it has no BF16; None where it is not known
    has_fp8:                  its matrix units take FP8
    measured_overhead_bytes:  what driver and framework were measured to take of one, for one model, None before that
    """

    name: str
    kind: DeviceKind
    memory_bytes: int
    count: int = 1
    bandwidth_bytes_per_s: int | None = None
    bf16_flops_per_s: int | None = None
    has_fp8: bool = False
    measured_overhead_bytes: int | None = None


_BUILTIN_GPUS = MappingProxyType(
    {
        name: Device(
            name,
            DeviceKind.GPU,
            spec.memory_mib * MIB,
            bandwidth_bytes_per_s=spec.bandwidth_gb_per_s * 10**9,
            bf16_flops_per_s=round(spec.bf16_tflops * 10**12),
            has_fp8=spec.has_fp8,
        )
        for name, spec in GPUS.items()
    }
)


def builtin_gpus() -> Mapping[str, Device]:
    """The whole GPUs that need no memory beside their name, by name."""
    return _BUILTIN_GPUS


def device_named(text: str) -> Device:
    """The device of 'a100-80gb', 'a100-40gb/1g.5gb' (a MIG slice), 'mygpu:48GiB' or 'cpu:2GiB'.

    A memory beside a built-in name takes the place of its own. Raises UnknownDevice for a name that is neither
    built in nor has a memory, and for a MIG profile that its GPU has not; InvalidQuantity for a memory that cannot
    be read.
    """
    name, colon, memory = text.strip().partition(":")
    memory_bytes = parse_quantity(memory) if name and colon else None
    if memory_bytes is not None and memory_bytes < MIB:
        raise InvalidQuantity(f"device '{text}' has {memory_bytes} bytes of memory; write the unit too, such as 40Gi")
    return device_of(name.lower(), memory_bytes)


def device_of(name: str, memory_bytes: int | None) -> Device:
    """The device of a name in lower case, with this memory in bytes where one is known. Raises UnknownDevice."""
    gpu, slash, profile = name.partition("/")
    if gpu in _BUILTIN_GPUS:
        whole = _BUILTIN_GPUS[gpu]
        if slash:
            return _slice_of(whole, profile, memory_bytes)
        return whole if memory_bytes is None else replace(whole, memory_bytes=memory_bytes)
    if memory_bytes is not None:
        return Device(name, DeviceKind.CPU if name == "cpu" else DeviceKind.GPU, memory_bytes)
    raise UnknownDevice(_unknown(name, gpu))


def _slice_of(whole: Device, profile: str, memory_bytes: int | None) -> Device:
    geometry, cut = mig_geometry(whole.name, profile)
    if memory_bytes is None and cut.memory_mib is not None:
        memory_bytes = cut.memory_mib * MIB
    name = f"{whole.name}/{profile}"
    if memory_bytes is None:
        raise UnknownDevice(
            f"device '{name}' has no memory in the list; write {name}:MEMORY with what `nvidia-smi mig -lgip` shows"
        )
    bandwidth, flops = whole.bandwidth_bytes_per_s, whole.bf16_flops_per_s
    return replace(
        whole,
        name=name,
        memory_bytes=memory_bytes,
        bandwidth_bytes_per_s=bandwidth and bandwidth * cut.memory_slices // geometry.memory_slices,
        bf16_flops_per_s=flops and flops * cut.compute_slices // geometry.compute_slices,
    )


def _unknown(name: str, gpu: str) -> str:
    if name == "cpu":
        return "device 'cpu' has no memory; write cpu:MEMORY, such as cpu:2GiB"
    close = [known for known in _BUILTIN_GPUS if known.startswith(gpu)] or get_close_matches(gpu, _BUILTIN_GPUS, n=3)
    meant = f"did you mean {' or '.join(close)}? Otherwise " if close else ""
    sliced = ", ".join(GEOMETRIES)
    return (
        f"device '{name}' has no memory and is not built in; {meant}write NAME:MEMORY, one of "
        f"{', '.join(_BUILTIN_GPUS)}, or a MIG slice such as a100-40gb/1g.5gb (of {sliced})"
    )
