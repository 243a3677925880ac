"""What to change where a plan does not fit: the smallest changes, each one computed with the planner's own sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from kvtide_sizing.devices.device import BUILTIN_GPUS_MIB, DeviceKind
from kvtide_sizing.quantity import GIB, MIB

_MOST = 3
_SMALLEST_BLOCK = 16


@dataclass(frozen=True)
class Wish:
    """What did not fit."""

    kind: DeviceKind
    device_bytes: int
    context_tokens: int
    block_size_tokens: int


# (context, block size) -> the smallest device that holds one such sequence.
Required = Callable[[int, int], int]


def smallest_changes(wish: Wish, longest_context: int, required: Required) -> tuple[str, ...]:
    """At most three changes, each one enough, those that keep the device first.

    longest_context: what this device holds, 0 for nothing.
    """
    return tuple(islice(_changes(wish, longest_context, required), _MOST))


def _changes(wish: Wish, longest_context: int, required: Required) -> Iterator[str]:
    asked, block_size = wish.context_tokens, wish.block_size_tokens
    if block_size > _SMALLEST_BLOCK and required(asked, _SMALLEST_BLOCK) <= wish.device_bytes:
        yield f"with kvCache.blockSizeTokens {_SMALLEST_BLOCK}"
    if longest_context:
        yield f"with maxContextTokens {longest_context}"
    needed = required(asked, block_size)
    yield f"with device.memory {_memory(wish.kind, needed)}"
    big_enough = [(mib, name) for name, mib in BUILTIN_GPUS_MIB.items() if mib * MIB >= needed]
    if wish.kind is DeviceKind.GPU and big_enough:
        yield f"on the device {min(big_enough)[1]}"
    offered = {_memory(wish.kind, needed)}
    for context in (asked // 2, asked // 4):
        memory = _memory(wish.kind, required(context, block_size)) if context >= block_size else ""
        if memory and longest_context < context and memory not in offered:
            offered.add(memory)
            yield f"with device.memory {memory} at maxContextTokens {context}"


def _memory(kind: DeviceKind, needed_bytes: int) -> str:
    """An amount to write into the resource: whole GiB of a GPU, multiples of 64 MiB of a container."""
    step = GIB if kind is DeviceKind.GPU else 64 * MIB
    rounded = -(-needed_bytes // step) * step
    return f"{rounded // GIB}Gi" if rounded % GIB == 0 else f"{rounded // MIB}Mi"
