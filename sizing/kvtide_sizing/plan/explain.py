"""The formula of a plan with its numbers put in, so that anybody can check it with a pocket calculator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from kvtide_sizing.devices.device import Device
from kvtide_sizing.formats import RECENT_PARTS, LayerFormat, VectorFormat
from kvtide_sizing.memory.budget import STEP_TOKEN_BUDGET, reserve_bytes
from kvtide_sizing.memory.key_bases import head_basis_bytes
from kvtide_sizing.memory.kv import KvLayout
from kvtide_sizing.memory.sharding import shard
from kvtide_sizing.memory.weights import WeightFormat
from kvtide_sizing.plan.case import Case
from kvtide_sizing.plan.planner import choose_case
from kvtide_sizing.plan.record import Plan
from kvtide_sizing.plan.workload import Policy, Workload
from kvtide_sizing.shape import LayerShape, ModelShape


def explain(plan: Plan, shape: ModelShape, device: Device, workload: Workload, policy: Policy) -> list[str]:
    """One line for each sum of the plan that `plan` made of the same arguments; amounts in bytes."""
    case = choose_case(shape, device, workload, policy)
    parts = (_token(plan, case), _recent(plan, case), _pool(plan, case), _sequences(plan, case))
    return [line for part in (*parts, _roofline(plan, device)) for line in part]


def _token(plan: Plan, case: Case) -> Iterator[str]:
    local = shard(case.shape, case.device.count)
    kinds = Counter(zip(local.layers, case.formats, strict=True))
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


def _recent(plan: Plan, case: Case) -> Iterator[str]:
    """What a sequence's last tokens take beside, where a side has 4 bits."""
    layout = case.budget(plan.max_context_tokens).layout
    if not layout.recent:
        return
    tables = len(layout.tables)
    each = f" in each of {tables} block tables" if tables > 1 else ""
    yield (
        f"recent tokens: a sequence keeps its last {layout.recent} in BF16 too, {layout.block_size} ÷ {RECENT_PARTS} = "
        f"{layout.recent_per_block} of them in a block: {layout.recent_blocks} blocks{each}, "
        f"{tables * layout.recent_blocks * layout.block_bytes:,} bytes a sequence"
    )


def _pool(plan: Plan, case: Case) -> Iterator[str]:
    kv, memory = plan.kv, plan.memory
    local = shard(case.shape, case.device.count)
    padded = kv.bytes_per_block // kv.block_size_tokens
    wider = "" if padded == kv.bytes_per_token else " (the widest table's, for each table)"
    yield f"a block: {kv.block_size_tokens} tokens · {padded:,}{wider} = {kv.bytes_per_block:,}"
    groups = ", ".join(f"{group.name} {group.elements:,}" for group in case.shape.weights)
    share = "" if plan.device_count == 1 else ", of which this device's share (what is split, and its copies) takes"
    bases = case.budget(plan.max_context_tokens).key_bases_bytes
    how = ", a byte each of a matrix and four for each of its outputs," if case.weights is WeightFormat.INT8 else ""
    stored = f"in {plan.weight_precision}{how}{share} = {memory.weights_bytes - bases:,}"
    yield f"weights: {case.shape.parameters:,} parameters ({groups}) {stored}"
    yield from _key_bases(case, local)
    yield (
        f"activations: the fullest moment of a step of {STEP_TOKEN_BUDGET} tokens that samples {plan.batch_limit} rows "
        f"of {local.vocab_size:,} logits = {memory.activations_bytes:,}; "
        f"block tables of a full batch are {kv.tables_bytes:,}"
    )
    of_weights = "weights and key bases" if bases else "weights"
    least = reserve_bytes(memory.device_bytes)
    planned = case.budget(plan.max_context_tokens).activations_bytes
    yield (
        f"blocks: ({memory.device_bytes:,} device − {memory.weights_bytes:,} {of_weights} − "
        f"{planned:,} activations of {case.batch_cap} rows − {memory.overhead_bytes:,} overhead − {least:,} reserve) ÷ "
        f"{kv.bytes_per_block:,} = {kv.num_blocks:,}, rounded down; the rest is the reserve's"
    )
    yield f"capacity: {kv.num_blocks:,} · {kv.block_size_tokens} = {kv.capacity_tokens:,} tokens"


def _key_bases(case: Case, local: ModelShape) -> Iterator[str]:
    """Of each kind of heads, in float32; they are counted with the weights."""
    pairs = zip(local.layers, case.formats, strict=True)
    kinds = Counter((layer.kv_heads, layer.head_dim) for layer, stored in pairs if stored.has_key_basis)
    for (kv_heads, dim), layers in kinds.items():
        total = layers * kv_heads * head_basis_bytes(dim)
        yield (
            f"key bases, which keys of fewer than 16 bits are stored in: {layers} layers · {kv_heads} KV "
            f"head{'s' if kv_heads != 1 else ''} · (8 · {dim}² + 4 · {dim}) = {total:,}, counted with the weights"
        )


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
        f"with half of each last block empty{_and_recent(layout)} = {layout.expected_sequences(blocks, expected):,}, "
        f"rounded down"
    )


def _and_recent(layout: KvLayout) -> str:
    return f" and {len(layout.tables) * layout.recent_blocks} for recent tokens" if layout.recent else ""


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
