"""The planner: from shape, device, workload and policy to a plan, in integers of bytes. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from kvtide_sizing import served
from kvtide_sizing.devices.device import Device
from kvtide_sizing.errors import InvalidWorkload, UnsupportedModel, UnsupportedPolicy, UnsupportedPrecision
from kvtide_sizing.formats import layer_formats
from kvtide_sizing.memory.budget import MAX_BATCH, STEP_TOKEN_BUDGET
from kvtide_sizing.memory.sharding import with_kv_heads
from kvtide_sizing.memory.weights import WeightFormat, native_format
from kvtide_sizing.plan.alternatives import alternatives
from kvtide_sizing.plan.block_size import choose_block_size
from kvtide_sizing.plan.candidates import candidates, kv_heads, precisions
from kvtide_sizing.plan.case import Case
from kvtide_sizing.plan.reasons import reasons, warnings
from kvtide_sizing.plan.record import AttentionPlan, KvPlan, LayerRun, MemoryPlan, Plan
from kvtide_sizing.plan.remedies import does_not_fit
from kvtide_sizing.plan.workload import Policy, Workload
from kvtide_sizing.shape import ModelShape


def plan(shape: ModelShape, device: Device, workload: Workload, policy: Policy) -> Plan:
    """Decide what a replica on this device holds.

    Raises DoesNotFit where not one sequence of the wanted context fits, with the smallest changes that would;
    InvalidWorkload for a context beyond the model's; UnsupportedPrecision, UnsupportedPolicy and UnsupportedModel for
    what the device cannot do and, under policy.served_only, for what this release's worker does not run.
    """
    case = choose_case(shape, device, workload, policy)
    context = context_of(case, workload)
    if not case.max_concurrency(context):
        raise does_not_fit(case, context, policy)
    result = Plan(
        model=shape.name,
        device=device.name,
        device_count=device.count,
        weight_precision=case.weights.value,
        overhead_measured=device.measured_overhead_bytes is not None,
        kv=_kv(case, context, policy),
        memory=_memory(case, context),
        attention=AttentionPlan(shape.query_heads, case.shape.kv_heads, shape.kv_heads),
        max_context_tokens=context,
        longest_context_tokens=case.longest_context,
        max_concurrency=case.max_concurrency(context),
        batch_limit=case.batch_limit(context),
        reasons=(),
        alternatives=tuple(alternatives(case, shape, policy, context)),
        warnings=(),
    )
    return replace(
        result,
        reasons=tuple(reasons(result, case, shape, workload, policy)),
        warnings=tuple(warnings(result, case, shape, workload, policy)),
    )


def choose_case(shape: ModelShape, device: Device, workload: Workload, policy: Policy) -> Case:
    """The first candidate that holds what is wanted; where none does, the one that comes nearest."""
    cases = list(_cases(shape, device, workload, policy))
    wanted = workload.target_concurrency or 1
    held = [_held(case, workload) for case in cases]
    reaching = (case for case, (sequences, _) in zip(cases, held, strict=True) if sequences >= wanted)
    nearest = cases[held.index(max(held))]
    if not nearest.max_concurrency(context_of(nearest, workload)):
        nearest = min(cases, key=lambda case: case.required_bytes(context_of(case, workload)))
    return next(reaching, nearest)


def _held(case: Case, workload: Workload) -> tuple[int, int]:
    """Sequences of the wanted context, or of the expected length where none is wanted; and tokens of the pool."""
    context = context_of(case, workload)
    tokens = case.num_blocks(context) * case.block_size
    if workload.max_context_tokens is not None:
        return case.max_concurrency(context), tokens
    expected = min(workload.mean_sequence_tokens, case.shape.max_context_tokens)
    # A context that is cut below the expected sequence holds none of them.
    return (case.held(context) if context >= expected else 0), tokens


def _cases(shape: ModelShape, device: Device, workload: Workload, policy: Policy) -> Iterator[Case]:
    """All that may be chosen, in the order of preference; each one's tokens take less than those of all before it."""
    _check_served(shape, device, policy)
    allowed_precisions, allowed_heads = precisions(policy, device), kv_heads(shape, policy)
    least: int | None = None
    for heads, precision in candidates(allowed_heads, allowed_precisions, workload.profile):
        with_heads = with_kv_heads(shape, heads, trained=heads in policy.variants)
        case = Case(
            shape=with_heads,
            device=device,
            precision=precision,
            block_size=choose_block_size(with_heads, layer_formats(with_heads, precision), workload, policy),
            batch_cap=min(STEP_TOKEN_BUDGET, max(MAX_BATCH[device.kind], workload.target_concurrency or 0)),
            sequence_tokens=workload.mean_sequence_tokens,
            weights=_weights(shape, policy),
        )
        token_bytes = case.block_bytes // case.block_size
        if least is None or token_bytes < least:
            least = token_bytes
            yield case


def _check_served(shape: ModelShape, device: Device, policy: Policy) -> None:
    if not policy.served_only:
        return
    if shape.unserved is not None:
        raise UnsupportedModel(shape.unserved)
    if device.count > served.MAX_DEVICES:
        raise UnsupportedPolicy(f"device.count {device.count} is not served by this release; write 1")


def _weights(shape: ModelShape, policy: Policy) -> WeightFormat:
    if policy.weights == "Auto":
        return native_format(shape)
    try:
        weights = WeightFormat(policy.weights)
    except ValueError:
        known = ", ".join(stored.value for stored in WeightFormat)
        raise UnsupportedPrecision(f"'{policy.weights}' is no precision of weights; write {known}, or Auto") from None
    if weights is WeightFormat.MXFP4 and not shape.has_experts:
        raise UnsupportedPrecision(f"model.weightPrecision MXFP4 is of experts, which {shape.name} has not; write INT4")
    if policy.served_only and weights not in served.WEIGHT_FORMATS:
        known = ", ".join(stored.value for stored in WeightFormat if stored in served.WEIGHT_FORMATS)
        raise UnsupportedPrecision(f"model.weightPrecision {weights} is not served by this release; write {known}")
    return weights


def context_of(case: Case, workload: Workload) -> int:
    """The context that one sequence may reach: what was asked, else the model's, cut to what fits.

    Raises InvalidWorkload for more than the model's.
    """
    asked, most = workload.max_context_tokens, case.shape.max_context_tokens
    if asked is not None and asked > most:
        raise InvalidWorkload(
            f"maxContextTokens {asked} is beyond the {most} that {case.shape.name} was made for; "
            f"write {most} or less, or leave it out"
        )
    return asked or case.longest_context or min(case.block_size, most)


def _kv(case: Case, context_tokens: int, policy: Policy) -> KvPlan:
    taken = case.budget(context_tokens)
    return KvPlan(
        precision=case.precision.value,
        block_size_tokens=case.block_size,
        bytes_per_token=case.bytes_per_token,
        bytes_per_block=taken.block_bytes,
        num_blocks=taken.num_blocks(case.device.memory_bytes),
        block_tables=len(taken.layout.tables),
        tables_bytes=taken.tables_bytes,
        layers=tuple(layer_runs([(each.key.name, each.value.name) for each in case.formats])),
        recent_blocks=taken.layout.recent_blocks,
        prefix_caching=policy.prefix_caching,
        max_quality_loss_percent=policy.max_quality_loss_percent,
    )


def layer_runs(formats: Sequence[tuple[str, str]]) -> Iterator[LayerRun]:
    """Neighbouring layers whose keys and values have formats of the same names."""
    first = 0
    for (key, value), run in groupby(formats):
        last = first + len(list(run)) - 1
        yield LayerRun(str(first) if first == last else f"{first}-{last}", key, value)
        first = last + 1


def _memory(case: Case, context_tokens: int) -> MemoryPlan:
    """The parts, of which the reserve takes what is less than a block, and what fewer sequences leave of a step."""
    taken, device = case.budget(context_tokens), case.device
    pool = taken.num_blocks(device.memory_bytes) * taken.block_bytes
    activations = case.activations_bytes(context_tokens)
    used = taken.weights_bytes + activations + taken.overhead_bytes + pool
    return MemoryPlan(
        device_bytes=device.memory_bytes,
        weights_bytes=taken.weights_bytes,
        activations_bytes=activations,
        overhead_bytes=taken.overhead_bytes,
        reserve_bytes=device.memory_bytes - used,
        kv_pool_bytes=pool,
    )
