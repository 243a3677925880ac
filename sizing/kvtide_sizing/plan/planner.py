"""The planner: from shape, device, workload and policy to a plan, in integers of bytes. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from kvtide_sizing import served
from kvtide_sizing.devices.device import Device
from kvtide_sizing.errors import DoesNotFit, InvalidWorkload, UnsupportedModel, UnsupportedPolicy, UnsupportedPrecision
from kvtide_sizing.formats import Precision, bytes_per_token, precision_named
from kvtide_sizing.memory.budget import MAX_BATCH, STEP_TOKEN_BUDGET, Budget, budget, reserve_bytes, step_bytes
from kvtide_sizing.plan.reasons import reasons, warnings
from kvtide_sizing.plan.record import Alternative, AttentionPlan, KvPlan, MemoryPlan, Plan
from kvtide_sizing.plan.remedies import Wish, smallest_changes
from kvtide_sizing.plan.workload import BLOCK_SIZES, Policy, Profile, Workload
from kvtide_sizing.quantity import format_bytes
from kvtide_sizing.shape import ModelShape

__all__ = ["Plan", "Policy", "Profile", "Workload", "plan"]

# An expected sequence may leave one part in so many of its last block empty, on average.
_TAIL_PARTS = 20


@dataclass(frozen=True)
class _Case:
    """A plan in the making: everything is fixed but the context and the device's memory."""

    shape: ModelShape
    device: Device
    precision: Precision
    block_size: int
    batch_cap: int
    sequence_tokens: int

    @cached_property
    def _budget_at_no_context(self) -> Budget:
        return budget(self.shape, self.device, self.precision, self.block_size, 0, self.batch_cap)

    def budget(self, context_tokens: int) -> Budget:
        """What is taken at this context. Only a step's activations depend on it, and it is asked for many."""
        step = step_bytes(self.shape, context_tokens, self.batch_cap)
        return replace(self._budget_at_no_context, step_bytes=step)

    def num_blocks(self, context_tokens: int) -> int:
        return self.budget(context_tokens).num_blocks(self.device.memory_bytes)

    def blocks_of(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def required_bytes(self, context_tokens: int) -> int:
        """The smallest memory that holds one sequence of this context."""
        return self.budget(context_tokens).required_bytes(self.blocks_of(context_tokens))

    def longest_context(self) -> int:
        """The longest context of which the device holds one sequence, in whole blocks up to the model's; or 0."""
        model_blocks = self.shape.max_context_tokens // self.block_size
        if self.num_blocks(self.shape.max_context_tokens) >= self.blocks_of(self.shape.max_context_tokens):
            return self.shape.max_context_tokens
        low, high = 0, model_blocks
        while low < high:
            middle = (low + high + 1) // 2
            fits = self.num_blocks(middle * self.block_size) >= middle
            low, high = (middle, high) if fits else (low, middle - 1)
        return low * self.block_size

    def max_concurrency(self, num_blocks: int, context_tokens: int) -> int:
        return num_blocks // self.blocks_of(context_tokens)

    def expected_tokens(self, context_tokens: int) -> int:
        return min(self.sequence_tokens, context_tokens)

    def batch_limit(self, num_blocks: int, context_tokens: int) -> int:
        held = num_blocks // self.blocks_of(self.expected_tokens(context_tokens))
        return max(1, min(held, self.batch_cap))


def plan(shape: ModelShape, device: Device, workload: Workload, policy: Policy) -> Plan:
    """Decide what a replica on this device holds.

    Raises DoesNotFit where not one sequence of the wanted context fits, with the smallest changes that would;
    InvalidWorkload for a context beyond the model's; UnsupportedPrecision and UnsupportedPolicy for what is not
    served.
    """
    _check_served(shape, device, policy)
    precision = Precision.BF16 if policy.precision == "Auto" else precision_named(policy.precision)
    case = _Case(
        shape=shape,
        device=device,
        precision=precision,
        block_size=_block_size(policy, workload),
        batch_cap=min(STEP_TOKEN_BUDGET, max(MAX_BATCH[device.kind], workload.target_concurrency or 0)),
        sequence_tokens=workload.mean_sequence_tokens,
    )
    context = _context(case, workload)
    num_blocks = case.num_blocks(context)
    result = Plan(
        model=shape.name,
        device=device.name,
        kv=KvPlan(precision.value, case.block_size, bytes_per_token(shape, precision), num_blocks),
        memory=_memory(case, context, num_blocks),
        attention=AttentionPlan(shape.query_heads, shape.kv_heads),
        max_context_tokens=context,
        max_concurrency=case.max_concurrency(num_blocks, context),
        batch_limit=case.batch_limit(num_blocks, context),
        reasons=(),
        alternatives=tuple(_alternatives(case, context)),
        warnings=(),
    )
    return replace(
        result,
        reasons=tuple(reasons(result, shape, workload, policy)),
        warnings=tuple(warnings(result, device, workload)),
    )


def _check_served(shape: ModelShape, device: Device, policy: Policy) -> None:
    if policy.kv_heads not in ("Native", shape.kv_heads):
        raise UnsupportedPolicy(
            f"attention.kvHeads {policy.kv_heads} is not served yet: {shape.name} has {shape.kv_heads} KV heads; "
            f"write Native"
        )
    if device.count != 1:
        raise UnsupportedPolicy(f"device.count {device.count} is not served yet; write 1")
    if policy.served_only and shape.unserved:
        raise UnsupportedModel(shape.unserved)
    if policy.served_only and policy.precision not in ("Auto", *served.PRECISIONS):
        raise UnsupportedPrecision(f"KV precision {policy.precision} is not served yet; write BF16, or Auto")


def _block_size(policy: Policy, workload: Workload) -> int:
    """The asked block size, or the largest whose half, empty at a sequence's end, is a small part of it."""
    if policy.block_size_tokens is not None:
        return policy.block_size_tokens
    wasteless = (size for size in BLOCK_SIZES if size // 2 * _TAIL_PARTS <= workload.mean_sequence_tokens)
    return max(wasteless, default=BLOCK_SIZES[0])


def _context(case: _Case, workload: Workload) -> int:
    """The context that one sequence may reach: what was asked, else the model's, cut to what fits."""
    asked, most = workload.max_context_tokens, case.shape.max_context_tokens
    if asked is not None and asked > most:
        raise InvalidWorkload(
            f"maxContextTokens {asked} is beyond the {most} that {case.shape.name} was made for; "
            f"write {most} or less, or leave it out"
        )
    if asked is None:
        fitting = case.longest_context()
        if fitting:
            return fitting
        asked = min(case.block_size, most)
    if case.num_blocks(asked) < case.blocks_of(asked):
        raise _does_not_fit(case, asked)
    return asked


def _does_not_fit(case: _Case, context: int) -> DoesNotFit:
    """The refusal, with what is needed for one sequence of this context, and what would fit."""
    parts = case.budget(context)
    blocks = case.blocks_of(context)
    needed = parts.required_bytes(blocks)

    def required(context_tokens: int, block_size: int) -> int:
        return replace(case, block_size=block_size).required_bytes(context_tokens)

    loading = ""
    if parts.load_peak_bytes == needed:
        loading = f", at the peak of loading {format_bytes(parts.load_bytes)} beside weights and overhead"
    wish = Wish(case.device.kind, case.device.memory_bytes, context, case.block_size)
    changes = smallest_changes(wish, case.longest_context(), required)
    return DoesNotFit(
        f"{case.shape.name} needs {format_bytes(needed)} for one sequence of {context} tokens "
        f"(weights {format_bytes(parts.weights_bytes)}, KV {format_bytes(blocks * parts.block_bytes)}, "
        f"activations {format_bytes(parts.activations_bytes(blocks))}, "
        f"overhead {format_bytes(parts.overhead_bytes)}, reserve {format_bytes(reserve_bytes(needed))}{loading}) "
        f"but the device has {format_bytes(case.device.memory_bytes)}; it fits {', or '.join(changes)}",
        needed_bytes=needed,
        device_bytes=case.device.memory_bytes,
        changes=changes,
    )


def _memory(case: _Case, context: int, num_blocks: int) -> MemoryPlan:
    """The parts, of which the reserve takes what is less than a block."""
    parts = case.budget(context)
    pool = num_blocks * parts.block_bytes
    activations = parts.activations_bytes(num_blocks)
    used = parts.weights_bytes + activations + parts.overhead_bytes + pool
    return MemoryPlan(
        device_bytes=case.device.memory_bytes,
        weights_bytes=parts.weights_bytes,
        activations_bytes=activations,
        overhead_bytes=parts.overhead_bytes,
        reserve_bytes=case.device.memory_bytes - used,
        kv_pool_bytes=pool,
    )


def _alternatives(case: _Case, context: int) -> Iterator[Alternative]:
    """The other block sizes, at the same context."""
    for size in BLOCK_SIZES:
        other = replace(case, block_size=size)
        num_blocks = other.num_blocks(context)
        if size != case.block_size and num_blocks >= other.blocks_of(context):
            yield Alternative(
                choice=f"blockSizeTokens {size}",
                capacity_tokens=num_blocks * size,
                max_concurrency=other.max_concurrency(num_blocks, context),
                batch_limit=other.batch_limit(num_blocks, context),
            )
