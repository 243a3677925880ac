"""What a replica runs on: a kind, a memory and how many of it."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from kvtide_sizing.errors import UnknownDevice
from kvtide_sizing.quantity import MIB, parse_quantity

__all__ = ["BUILTIN_GPUS_MIB", "Device", "DeviceKind", "device_named", "parse_quantity"]


class DeviceKind(enum.StrEnum):
    """What a device is. A CPU's memory is the container's limit."""

    CPU = "CPU"
    GPU = "GPU"


@dataclass(frozen=True)
class Device:
    """One kind of device of a replica: memory_bytes each, count of them."""

    name: str
    kind: DeviceKind
    memory_bytes: int
    count: int = 1


# What nvidia-smi reports as memory.total on each, in MiB: a little under the name where ECC or the driver keeps some.
BUILTIN_GPUS_MIB = {
    "t4": 15360,
    "v100-16gb": 16384,
    "v100-32gb": 32768,
    "a10g": 23028,
    "l4": 23034,
    "rtx-3090": 24576,
    "rtx-4090": 24564,
    "a100-40gb": 40960,
    "l40s": 46068,
    "h100-80gb": 81559,
    "a100-80gb": 81920,
    "h200": 143771,
}


def device_named(text: str) -> Device:
    """The device of 'a100-80gb', 'mygpu:48GiB' or 'cpu:2GiB'.

    A memory beside a built-in name takes the place of its own. Raises UnknownDevice for a name that is neither
    built in nor has a memory, InvalidQuantity for a memory that cannot be read.
    """
    name, colon, memory = text.strip().partition(":")
    name = name.lower()
    kind = DeviceKind.CPU if name == "cpu" else DeviceKind.GPU
    if name and colon:
        return Device(name, kind, parse_quantity(memory))
    if name in BUILTIN_GPUS_MIB:
        return Device(name, kind, BUILTIN_GPUS_MIB[name] * MIB)
    hint = "write cpu:MEMORY, such as cpu:2GiB" if kind is DeviceKind.CPU else "write NAME:MEMORY"
    raise UnknownDevice(
        f"device '{text}' has no memory and is not built in; {hint}, or one of {', '.join(BUILTIN_GPUS_MIB)}"
    )
