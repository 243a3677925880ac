"""A finished plan in words: why each choice, what the next-best would have given, what to know before trusting it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvtide_sizing.devices.device import DeviceKind
from kvtide_sizing.formats import Precision
from kvtide_sizing.memory.budget import STEP_TOKEN_BUDGET
from kvtide_sizing.memory.weights import WeightFormat, copied_bytes, kv_heads_per_device
from kvtide_sizing.plan.block_size import tail_waste
from kvtide_sizing.plan.candidates import LOSS_BOUND_PERCENT, WEIGHTS_LOSS_BOUND_PERCENT
from kvtide_sizing.plan.case import Case
from kvtide_sizing.plan.record import Alternative, Plan
from kvtide_sizing.plan.unserved import unserved
from kvtide_sizing.plan.workload import Policy, Profile, Workload
from kvtide_sizing.quantity import format_bytes
from kvtide_sizing.shape import ModelShape


def reasons(plan: Plan, case: Case, native: ModelShape, workload: Workload, policy: Policy) -> Iterator[str]:
    """Why each choice was made, one sentence each, with its numbers."""
    memory = plan.memory
    yield f"precision {plan.kv.precision}: " + _why_precision(plan, case, policy)
    if policy.block_size_tokens is None:
        yield f"blockSizeTokens {plan.kv.block_size_tokens}: " + _why_block_size(plan, case, workload)
    if plan.attention.kv_heads != native.kv_heads:
        yield f"kvHeads {plan.attention.kv_heads}: " + _why_kv_heads(plan, policy)
    if workload.max_context_tokens is None:
        yield f"maxContextTokens {plan.max_context_tokens}: " + _why_context(plan, native)
    yield f"weightPrecision {case.weights}: " + _why_weights(plan, case, policy)
    if plan.device_count > 1:
        yield f"{plan.device_count} devices: " + _how_devices_share(plan, case)
    yield (
        f"KV pool {format_bytes(memory.kv_pool_bytes)}: what {format_bytes(memory.device_bytes)} leaves after "
        f"weights {format_bytes(memory.weights_bytes)}, activations {format_bytes(memory.activations_bytes)}, "
        f"overhead {format_bytes(memory.overhead_bytes)} and reserve {format_bytes(memory.reserve_bytes)}"
    )
    yield f"batchLimit {plan.batch_limit}: " + _why_batch_limit(plan, case)


def holds(concurrency: int, context_tokens: int) -> str:
    """'holds 3 sequences of 8192 tokens'."""
    return f"holds {concurrency} sequence{'s' if concurrency != 1 else ''} of {context_tokens} tokens"


def next_smaller(plan: Plan) -> Alternative | None:
    """The best precision of those whose pool holds more tokens than the plan's; None where there is none."""
    names = [f"precision {precision}" for precision in LOSS_BOUND_PERCENT]
    more = (other for other in plan.alternatives if other.capacity_tokens > plan.kv.capacity_tokens)
    return min(
        (other for other in more if other.choice in names), key=lambda other: names.index(other.choice), default=None
    )


def _why_precision(plan: Plan, case: Case, policy: Policy) -> str:
    own = holds(plan.max_concurrency, plan.max_context_tokens)
    if policy.precision != "Auto":
        text = f"as asked{_how_mixed(plan, case)}; it {own}"
    elif plan.kv.precision == Precision.BF16:
        text = f"nothing is lost, and it {own}"
    else:
        loss = LOSS_BOUND_PERCENT[Precision(plan.kv.precision)]
        text = (
            f"of what may cost {policy.max_quality_loss_percent:g} % in perplexity, the best that reaches what is "
            f"wanted or comes nearest; it costs at most {loss:g} %, as a bound{_how_mixed(plan, case)}; it {own}"
        )
    other = next_smaller(plan)
    if other is None:
        return text
    name = other.choice.removeprefix("precision ")
    note = "" if other.served else ", which this release does not serve yet"
    return f"{text}; {name} would hold {other.max_concurrency}{note}"


def _how_mixed(plan: Plan, case: Case) -> str:
    """How its layers' formats were chosen: by what was measured of them, or by a rule."""
    if plan.kv.precision != Precision.MIXED:
        return ""
    if case.shape.sensitivity is None:
        return ", with edge layers in BF16 and K8V4 between, as nobody measured this model"
    return ", measured: of all formats in the bytes of K8V4, the layers' losses add up to the least"


def _why_block_size(plan: Plan, case: Case, workload: Workload) -> str:
    size = plan.kv.block_size_tokens
    expected = case.expected_tokens(plan.max_context_tokens)
    entries = -(-plan.max_context_tokens // size) * plan.kv.block_tables
    text = (
        f"a sequence of the expected {expected} tokens leaves half a block empty on average, "
        f"{tail_waste(size, expected):.1%} of it, and one of {plan.max_context_tokens} has {entries} table entries"
    )
    if workload.profile is Profile.CHAT:
        text += "; chats share prompts in whole blocks, so no larger than 64"
    neighbours = [other for other in plan.alternatives if other.choice.startswith("blockSizeTokens")]
    best = max(neighbours, key=lambda other: (other.batch_limit, other.capacity_tokens), default=None)
    if best is None:
        return text
    return (
        f"{text}; {best.choice.removeprefix('blockSizeTokens ')} would hold {best.batch_limit} such sequences at once"
    )


def _why_kv_heads(plan: Plan, policy: Policy) -> str:
    heads, native = plan.attention.kv_heads, plan.attention.native_kv_heads
    kind = "a variant that was trained so" if heads in policy.variants else "pooled, if the quality gate lets it pass"
    full = next((other for other in plan.alternatives if other.choice == f"kvHeads {native}"), None)
    text = f"of {native}, {kind}; it {holds(plan.max_concurrency, plan.max_context_tokens)}"
    return text if full is None else f"{text}, all {native} would hold {full.max_concurrency}"


def _why_context(plan: Plan, native: ModelShape) -> str:
    if plan.max_context_tokens < native.max_context_tokens:
        return f"the model allows {native.max_context_tokens}, cut to what one sequence finds room for"
    return "what the model allows"


def _why_weights(plan: Plan, case: Case, policy: Policy) -> str:
    stored = case.weights
    if stored is not WeightFormat.BF16 and policy.weights == "Auto":
        return "as the checkpoint is stored"
    text = "nothing is rounded" if stored is WeightFormat.BF16 else "as asked"
    if stored is WeightFormat.INT8:
        loss = WEIGHTS_LOSS_BOUND_PERCENT[stored]
        text += f"; a byte an element and a scale for each output may cost {loss:g} % in perplexity, as a bound"
    other = WeightFormat.INT8 if stored is WeightFormat.BF16 else WeightFormat.BF16
    would = replace(case, weights=other)
    taken = format_bytes(would.budget(plan.max_context_tokens).weights_bytes)
    held = would.max_concurrency(plan.max_context_tokens)
    return f"{text}; {other} would take {taken} in place of {format_bytes(plan.memory.weights_bytes)}, and hold {held}"


def _how_devices_share(plan: Plan, case: Case) -> str:
    heads = plan.attention.kv_heads
    text = "all bytes are those of each; "
    if any(layer.is_latent for layer in case.shape.layers):
        text += "each has the whole latent"
    else:
        each = kv_heads_per_device(heads, plan.device_count)
        copies = plan.device_count // heads
        text += f"it has {each} of {heads} KV heads"
        text += f", each of which is there {copies} times" if copies > 1 else ""
    copied = copied_bytes(case.shape, case.weights, plan.device_count)
    return f"{text}, and {format_bytes(copied)} of weights are there more than once"


def _why_batch_limit(plan: Plan, case: Case) -> str:
    expected = case.expected_tokens(plan.max_context_tokens)
    held = case.held(plan.max_context_tokens)
    text = (
        f"{plan.kv.num_blocks} blocks hold {held} sequences of the expected {expected} tokens, with half of each last "
        f"block empty"
    )
    layout = case.budget(plan.max_context_tokens).layout
    if layout.recent:
        text += f" and {layout.recent_blocks} more for the last {layout.recent} tokens in BF16"
    if held > plan.batch_limit:
        return f"{text}, but a step runs no more than {plan.batch_limit}"
    return text


def warnings(plan: Plan, case: Case, native: ModelShape, workload: Workload, policy: Policy) -> Iterator[str]:
    """What is estimated, cut, not served, or less than was wished for."""
    yield from unserved(case, native)
    if case.shape.pooled_from is not None:
        yield (
            f"{case.shape.pooled_from} KV heads are pooled into {case.shape.kv_heads}: the worker compares them with "
            f"all before it serves, and refuses where that costs more than maxQualityLossPercent "
            f"{policy.max_quality_loss_percent:g}, as it does of nearly every model that was not trained so"
        )
    yield from _not_reached(plan, case, workload)
    if workload.mean_sequence_tokens > plan.max_context_tokens:
        yield (
            f"the expected sequence of {workload.mean_sequence_tokens} tokens is longer than maxContextTokens "
            f"{plan.max_context_tokens}; counted as {plan.max_context_tokens}"
        )
    loss = LOSS_BOUND_PERCENT[case.precision]
    if loss > policy.max_quality_loss_percent:
        yield (
            f"{case.precision} was asked for, and may cost up to {loss:g} % in perplexity: more than "
            f"maxQualityLossPercent {policy.max_quality_loss_percent:g}, which bounds what Auto chooses"
        )
    memory = plan.memory
    overhead = "measured" if plan.overhead_measured else "an estimate from above"
    yield (
        f"overhead {format_bytes(memory.overhead_bytes)} is {overhead}, activations "
        f"{format_bytes(memory.activations_bytes)} are counted from the forward pass"
        + ("; neither has been measured on a GPU yet" if case.device.kind is DeviceKind.GPU else "")
    )
    if case.device.kind is DeviceKind.CPU:
        more = format_bytes(case.more_without_kernels(plan.max_context_tokens))
        yield f"a processor without AVX512-BF16 and VBMI takes up to {more} more in a step, out of the reserve"


def _not_reached(plan: Plan, case: Case, workload: Workload) -> Iterator[str]:
    """Wanted is the full context where one was asked for, else the expected length."""
    target, context = workload.target_concurrency, plan.max_context_tokens
    expected = case.expected_tokens(context)
    if workload.max_context_tokens is None:
        tokens, held = expected, plan.batch_limit
    else:
        tokens, held = context, min(plan.max_concurrency, case.batch_cap)
    if target is None or target <= held:
        return
    if held == case.batch_cap:
        yield f"targetConcurrency {target} is not reached: a step has {STEP_TOKEN_BUDGET} tokens, one of each sequence"
        return
    needed = case.budget(context).blocks_for(target, tokens) * plan.kv.block_size_tokens
    yield (
        f"targetConcurrency {target} is not reached: {target} sequences of {tokens} tokens need {needed} tokens of KV, "
        f"the pool has {plan.kv.capacity_tokens} and {holds(held, tokens)}"
        + (f", or {plan.batch_limit} of the expected {expected}" if tokens != expected else "")
    )
