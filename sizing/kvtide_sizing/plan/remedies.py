"""A refusal, and what would fit: the smallest changes, each one computed with the planner's own sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from kvtide_sizing import served
from kvtide_sizing.devices.device import DeviceKind, builtin_gpus
from kvtide_sizing.errors import DoesNotFit, UnsupportedPolicy
from kvtide_sizing.formats import Precision
from kvtide_sizing.memory.budget import reserve_bytes
from kvtide_sizing.memory.weights import WeightFormat
from kvtide_sizing.plan.candidates import LOSS_BOUND_PERCENT
from kvtide_sizing.plan.case import Case
from kvtide_sizing.plan.workload import BLOCK_SIZES, Policy
from kvtide_sizing.quantity import GIB, MIB, format_bytes

_MOST = 3
_MOST_DEVICES = 16


def does_not_fit(case: Case, context_tokens: int, policy: Policy) -> DoesNotFit:
    """What is needed for one sequence of this context, what there is, and at most three changes that would fit."""
    taken, device = case.budget(context_tokens), case.device
    blocks = taken.blocks_for(1, context_tokens)
    needed = taken.required_bytes(blocks)
    loading = ""
    if taken.load_peak_bytes == needed:
        loading = f", at the peak of loading {format_bytes(taken.load_bytes)} beside weights and overhead"
    changes = tuple(islice(_changes(case, context_tokens, policy), _MOST))
    kv_bytes = blocks * taken.block_bytes
    more = format_bytes(needed - device.memory_bytes)
    each = f" on each of {device.count} devices" if device.count > 1 else ""
    return DoesNotFit(
        f"{case.shape.name} needs {format_bytes(needed)}{each} for one sequence of {context_tokens} tokens "
        f"in {case.precision} (weights {format_bytes(taken.weights_bytes)}, KV {format_bytes(kv_bytes)}, "
        f"activations {format_bytes(taken.activations_bytes)}, overhead {format_bytes(taken.overhead_bytes)}, "
        f"reserve {format_bytes(reserve_bytes(needed))}{loading}) "
        f"but the device has {format_bytes(device.memory_bytes)}, {more} less; it fits {', or '.join(changes)}",
        needed_bytes=needed,
        device_bytes=device.memory_bytes,
        changes=changes,
    )


def _changes(case: Case, context_tokens: int, policy: Policy) -> Iterator[str]:
    """Those that keep the device first, then a larger one, then both."""
    keeping = _keeping_the_device(case, context_tokens, policy)
    yield from islice(keeping, _MOST - 1)
    yield from _with_another_device(case, context_tokens, policy)


def _keeping_the_device(case: Case, context_tokens: int, policy: Policy) -> Iterator[str]:
    smallest = replace(case, block_size=BLOCK_SIZES[0])
    if case.block_size > BLOCK_SIZES[0] and smallest.max_concurrency(context_tokens):
        yield f"with kvCache.blockSizeTokens {BLOCK_SIZES[0]}"
    yield from _with_other_formats(case, context_tokens, policy)
    longest = case.longest_context
    if longest:
        yield f"with maxContextTokens {longest}"


def _with_other_formats(case: Case, context_tokens: int, policy: Policy) -> Iterator[str]:
    """Of KV, of weights, or of both where neither is enough."""
    kv = list(_smaller_kv(case, policy))
    found = next((other for other in kv if other.max_concurrency(context_tokens)), None)
    if found is not None:
        yield f"with kvCache.precision {found.precision}"
    for lighter in _lighter(case, policy):
        if lighter.max_concurrency(context_tokens):
            yield f"with model.weightPrecision {lighter.weights}"
            return
        both = next(
            (other for other in kv if replace(other, weights=lighter.weights).max_concurrency(context_tokens)), None
        )
        if found is None and both is not None:
            yield f"with model.weightPrecision {lighter.weights} and kvCache.precision {both.precision}"
            return


def _smaller_kv(case: Case, policy: Policy) -> Iterator[Case]:
    """Those whose blocks take less, best quality first."""
    smaller = (
        replace(case, precision=precision)
        for precision in LOSS_BOUND_PERCENT
        if (precision in served.PRECISIONS or not policy.served_only)
        and (precision is not Precision.FP8 or case.device.has_fp8)
    )
    yield from (other for other in smaller if other.block_bytes < case.block_bytes)


def _lighter(case: Case, policy: Policy) -> Iterator[Case]:
    """Those whose weights take less, best quality first."""
    if case.weights is WeightFormat.BF16:
        for weights in (WeightFormat.INT8, WeightFormat.INT4):
            if weights in served.WEIGHT_FORMATS or not policy.served_only:
                yield replace(case, weights=weights)


def _with_another_device(case: Case, context_tokens: int, policy: Policy) -> Iterator[str]:
    device, needed = case.device, case.required_bytes(context_tokens)
    count = None if policy.served_only or device.kind is DeviceKind.CPU else _enough_devices(case, context_tokens)
    if count is not None:
        yield f"with device.count {count}"
    yield f"with device.memory {_memory(device.kind, needed)}"
    if device.kind is DeviceKind.GPU:
        yield from _on_another_gpu(case, context_tokens, needed, policy)
    longest, offered = case.longest_context, {_memory(device.kind, needed)}
    for context in (context_tokens // 2, context_tokens // 4):
        memory = _memory(device.kind, case.required_bytes(context)) if context >= case.block_size else ""
        if memory and longest < context and memory not in offered:
            offered.add(memory)
            yield f"with device.memory {memory} at maxContextTokens {context}"


def _on_another_gpu(case: Case, context_tokens: int, needed: int, policy: Policy) -> Iterator[str]:
    """The smallest that is large enough, or as few as there can be of the largest."""
    big_enough = [(gpu.memory_bytes, name) for name, gpu in builtin_gpus().items() if gpu.memory_bytes >= needed]
    if big_enough:
        yield f"on the device {min(big_enough)[1]}"
        return
    largest = max(builtin_gpus().values(), key=lambda gpu: gpu.memory_bytes)
    count = None if policy.served_only else _enough_devices(replace(case, device=largest), context_tokens)
    if count is not None:
        yield f"on the device {largest.name} with device.count {count}"


def _enough_devices(case: Case, context_tokens: int) -> int | None:
    for count in range(case.device.count + 1, _MOST_DEVICES + 1):
        try:
            if replace(case, device=replace(case.device, count=count)).max_concurrency(context_tokens):
                return count
        except UnsupportedPolicy:  # so many cannot share the query heads
            continue
    return None


def _memory(kind: DeviceKind, needed_bytes: int) -> str:
    """An amount to write into the resource: whole GiB of a GPU, multiples of 64 MiB of a container."""
    step = GIB if kind is DeviceKind.GPU else 64 * MIB
    rounded = -(-needed_bytes // step) * step
    return f"{rounded // GIB}Gi" if rounded % GIB == 0 else f"{rounded // MIB}Mi"
