"""The formula of a plan with its numbers put in, so that anybody can check it with a pocket calculator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from kvtide_sizing.devices.device import Device
from kvtide_sizing.formats import LayerFormat, VectorFormat, layer_formats
from kvtide_sizing.memory.budget import RESERVE_PARTS, STEP_TOKEN_BUDGET
from kvtide_sizing.memory.sharding import shard
from kvtide_sizing.plan.case import Case
from kvtide_sizing.plan.planner import choose_case, context_of
from kvtide_sizing.plan.record import Plan
from kvtide_sizing.plan.workload import Policy, Workload
from kvtide_sizing.shape import LayerShape, ModelShape


def explain(plan: Plan, shape: ModelShape, device: Device, workload: Workload, policy: Policy) -> list[str]:
    """One line for each sum of the plan that `plan` made of the same arguments; amounts in bytes."""
    case = choose_case(shape, device, workload, policy)
    context = context_of(case, workload)
    return [
        *_token(plan, case),
        *_pool(plan, case),
        *_sequences(plan, case, context),
        *_roofline(plan, device, context),
    ]


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
    stored = f"{plan.weights_format} = {memory.weights_bytes:,}"
    yield f"weights: {case.shape.parameters:,} parameters ({groups}) in {stored}"
    yield (
        f"activations: a step of {STEP_TOKEN_BUDGET} tokens and {case.batch_cap} rows of {local.vocab_size:,} logits "
        f"= {memory.activations_bytes:,}, of which block tables {kv.tables_bytes:,}"
    )
    least = memory.device_bytes // RESERVE_PARTS
    yield (
        f"blocks: ({memory.device_bytes:,} device − {memory.weights_bytes:,} weights − {memory.activations_bytes:,} "
        f"activations − {memory.overhead_bytes:,} overhead − {least:,} reserve) ÷ {kv.bytes_per_block:,} "
        f"= {kv.num_blocks:,}, rounded down; the rest is the reserve's"
    )
    yield f"capacity: {kv.num_blocks:,} · {kv.block_size_tokens} = {kv.capacity_tokens:,} tokens"


def _sequences(plan: Plan, case: Case, context_tokens: int) -> Iterator[str]:
    layout = case.budget(context_tokens).layout
    blocks = plan.kv.num_blocks * plan.kv.block_tables
    step = f" − {layout.step_blocks} that a step's new tokens may need" if layout.step_blocks else ""
    for tokens, what in ((context_tokens, "full"), (case.expected_tokens(context_tokens), "expected")):
        each = layout.sequence_blocks(tokens)
        yield (
            f"sequences of the {what} {tokens} tokens: ({blocks:,} blocks{step}) ÷ {each} "
            f"= {layout.sequences(blocks, tokens):,} of {each * layout.block_bytes:,} bytes each"
        )


def _roofline(plan: Plan, device: Device, context_tokens: int) -> Iterator[str]:
    """What reading costs: a decode step reads all weights and all live KV once, whatever the kernels."""
    if device.bandwidth_bytes_per_s is None:
        return
    full = plan.memory.weights_bytes + plan.memory.kv_pool_bytes
    seconds = full / device.bandwidth_bytes_per_s
    yield (
        f"at best: a decode step over a full pool reads {full:,} bytes, {seconds * 1000:.1f} ms at "
        f"{device.bandwidth_bytes_per_s / 1e9:,.0f} GB/s; mixtures read fewer weights"
    )
