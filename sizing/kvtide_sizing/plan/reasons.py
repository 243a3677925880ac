"""A finished plan in words: why each choice, and what a person should know before trusting it."""

from __future__ import annotations

from collections.abc import Iterator

from kvtide_sizing.devices.device import Device, DeviceKind
from kvtide_sizing.plan.record import Plan
from kvtide_sizing.plan.workload import Policy, Workload
from kvtide_sizing.quantity import format_bytes
from kvtide_sizing.shape import ModelShape


def reasons(plan: Plan, shape: ModelShape, workload: Workload, policy: Policy) -> Iterator[str]:
    """Why each choice was made, one sentence each, with its numbers."""
    kv, memory = plan.kv, plan.memory
    expected = min(workload.mean_sequence_tokens, plan.max_context_tokens)
    if policy.precision == "Auto":
        yield f"precision {kv.precision}: the only one served"
    if policy.block_size_tokens is None:
        waste = kv.block_size_tokens / 2 / expected
        yield (
            f"blockSizeTokens {kv.block_size_tokens}: a sequence of the expected {expected} tokens leaves half a "
            f"block empty on average, {waste:.1%} of it; larger blocks make shorter tables"
        )
    if workload.max_context_tokens is None:
        cut = plan.max_context_tokens < shape.max_context_tokens
        yield f"maxContextTokens {plan.max_context_tokens}: " + (
            f"the model allows {shape.max_context_tokens}, cut to what one sequence finds room for"
            if cut
            else "what the model allows"
        )
    yield (
        f"KV pool {format_bytes(memory.kv_pool_bytes)}: what {format_bytes(memory.device_bytes)} leaves after "
        f"weights {format_bytes(memory.weights_bytes)}, activations {format_bytes(memory.activations_bytes)}, "
        f"overhead {format_bytes(memory.overhead_bytes)} and reserve {format_bytes(memory.reserve_bytes)}"
    )
    yield f"batchLimit {plan.batch_limit}: " + _why_batch_limit(plan, expected)


def _why_batch_limit(plan: Plan, expected: int) -> str:
    kv = plan.kv
    held = kv.num_blocks // -(-expected // kv.block_size_tokens)
    text = f"{kv.num_blocks} blocks hold {held} sequences of the expected {expected} tokens"
    if held > plan.batch_limit:
        return f"{text}, but a step runs no more than {plan.batch_limit}: beyond them it only gets slower"
    return text


def warnings(plan: Plan, device: Device, workload: Workload) -> Iterator[str]:
    """What is estimated, cut, or less than was wished for."""
    yield (
        f"overhead {format_bytes(plan.memory.overhead_bytes)} and activations "
        f"{format_bytes(plan.memory.activations_bytes)} are estimates from above"
        + ("; on a GPU they have not been measured yet" if device.kind is DeviceKind.GPU else "")
    )
    if workload.mean_sequence_tokens > plan.max_context_tokens:
        yield (
            f"the expected sequence of {workload.mean_sequence_tokens} tokens is longer than maxContextTokens "
            f"{plan.max_context_tokens}; counted as {plan.max_context_tokens}"
        )
    target = workload.target_concurrency
    if target is not None and target > plan.batch_limit:
        expected = min(workload.mean_sequence_tokens, plan.max_context_tokens)
        needed = target * -(-expected // plan.kv.block_size_tokens) * plan.kv.block_size_tokens
        yield (
            f"targetConcurrency {target} is not reached: {target} sequences of {expected} tokens need "
            f"{needed} tokens of KV, the pool holds {plan.kv.capacity_tokens}, which is {plan.batch_limit} of them"
        )
