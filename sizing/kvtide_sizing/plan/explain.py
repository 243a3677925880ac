"""The formula of a plan with its numbers put in, so that anybody can check it with a pocket calculator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from kvtide_sizing.devices.device import Device
from kvtide_sizing.formats import LayerFormat, VectorFormat, layer_formats
from kvtide_sizing.memory.budget import STEP_TOKEN_BUDGET, reserve_bytes
from kvtide_sizing.memory.sharding import shard
from kvtide_sizing.plan.case import Case
from kvtide_sizing.plan.planner import choose_case
from kvtide_sizing.plan.record import Plan
from kvtide_sizing.plan.workload import Policy, Workload
from kvtide_sizing.shape import LayerShape, ModelShape


def explain(plan: Plan, shape: ModelShape, device: Device, workload: Workload, policy: Policy) -> list[str]:
    """One line for each sum of the plan that `plan` made of the same arguments; amounts in bytes."""
    case = choose_case(shape, device, workload, policy)
    return [*_token(plan, case), *_pool(plan, case), *_sequences(plan, case), *_roofline(plan, device)]


def _token(plan: Plan, case: Case) -> Iterator[str]:
    local = shard(case.shape, case.device.count)
    kinds = Counter(zip(local.layers, layer_formats(local, case.precision), strict=True))
    for (layer, stored), count in kinds.items():
        total = count * stored.bytes_per_token(layer)
        window = f" (they see the last {layer.window} tokens)" if layer.window else ""
        yield f"{count} layers{window}: {count} · {_layer(layer, stored)} = {total:,} bytes a token"
    yield f"a token of context, all {local.num_layers} layers: {plan.kv.bytes_per_token:,} bytes"


def _layer(layer: LayerShape, stored: LayerFormat) -> str:
    if layer.is_latent:
        return f"{_vector(stored.key, layer.head_dim)} of one latent"
    heads = f"{layer.kv_heads} KV head{'s' if layer.kv_heads != 1 else ''}"
    return f"{heads} · ({_vector(stored.key, layer.head_dim)} + {_vector(stored.value, layer.value_dim)})"


def _vector(stored: VectorFormat, dim: int) -> str:
    """'64 · 2', or '64 · 1 + 2' with a scale of two bytes."""
    size = {16: "2", 8: "1", 4: "½"}[stored.bits]
    extra = stored.scale_bytes + stored.zero_bytes
    return f"{dim} · {size}" + (f" + {extra}" if extra else "")


def _pool(plan: Plan, case: Case) -> Iterator[str]:
    kv, memory = plan.kv, plan.memory
    local = shard(case.shape, case.device.count)
    padded = kv.bytes_per_block // kv.block_size_tokens
    wider = "" if padded == kv.bytes_per_token else " (the widest table's, for each table)"
    yield f"a block: {kv.block_size_tokens} tokens · {padded:,}{wider} = {kv.bytes_per_block:,}"
    groups = ", ".join(f"{group.name} {group.elements:,}" for group in case.shape.weights)
    share = "" if plan.device_count == 1 else ", of which this device's share (what is split, and its copies) takes"
    stored = f"in {plan.weights_format}{share} = {memory.weights_bytes:,}"
    yield f"weights: {case.shape.parameters:,} parameters ({groups}) {stored}"
    yield (
        f"activations: the fullest moment of a step of {STEP_TOKEN_BUDGET} tokens that samples {plan.batch_limit} rows "
        f"of {local.vocab_size:,} logits = {memory.activations_bytes:,}; "
        f"block tables of a full batch are {kv.tables_bytes:,}"
    )
    least = reserve_bytes(memory.device_bytes)
    planned = case.budget(plan.max_context_tokens).activations_bytes
    yield (
        f"blocks: ({memory.device_bytes:,} device − {memory.weights_bytes:,} weights − {planned:,} activations of "
        f"{case.batch_cap} rows − {memory.overhead_bytes:,} overhead − {least:,} reserve) ÷ {kv.bytes_per_block:,} "
        f"= {kv.num_blocks:,}, rounded down; the rest is the reserve's"
    )
    yield f"capacity: {kv.num_blocks:,} · {kv.block_size_tokens} = {kv.capacity_tokens:,} tokens"


def _sequences(plan: Plan, case: Case) -> Iterator[str]:
    context = plan.max_context_tokens
    layout, expected = case.budget(context).layout, case.expected_tokens(context)
    blocks = plan.kv.num_blocks * plan.kv.block_tables
    step = f" − {layout.step_blocks} that a step's new tokens may need" if layout.step_blocks else ""
    each = layout.sequence_blocks(context)
    yield (
        f"sequences of the full {context} tokens: ({blocks:,} blocks{step}) ÷ {each} = {plan.max_concurrency:,} "
        f"of {each * layout.block_bytes:,} bytes each, rounded down"
    )
    half = layout.expected_half_tokens(expected)
    yield (
        f"sequences of the expected {expected} tokens: ({blocks:,} blocks{step}) ÷ {half / 2 / layout.block_size:g}, "
        f"with half of each last block empty = {layout.expected_sequences(blocks, expected):,}, rounded down"
    )


def _roofline(plan: Plan, device: Device) -> Iterator[str]:
    """What reading costs: a decode step reads all weights and all live KV once, whatever the kernels."""
    if device.bandwidth_bytes_per_s is None:
        return
    full = plan.memory.weights_bytes + plan.memory.kv_pool_bytes
    seconds = full / device.bandwidth_bytes_per_s
    yield (
        f"at best: a decode step over a full pool reads {full:,} bytes, {seconds * 1000:.1f} ms at "
        f"{device.bandwidth_bytes_per_s / 1e9:,.0f} GB/s; mixtures read fewer weights"
    )
