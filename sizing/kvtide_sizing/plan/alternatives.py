"""What each other choice would have given, all else the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvtide_sizing import served
from kvtide_sizing.errors import UnsupportedPolicy
from kvtide_sizing.formats import Precision
from kvtide_sizing.memory.sharding import with_kv_heads
from kvtide_sizing.memory.weights import WeightFormat
from kvtide_sizing.plan.case import Case
from kvtide_sizing.plan.record import Alternative
from kvtide_sizing.plan.workload import BLOCK_SIZES, Policy
from kvtide_sizing.shape import ModelShape

# Models without grouped queries are shown with the number of KV heads that most grouped models have.
_USUAL_KV_HEADS = 8


def alternatives(case: Case, native: ModelShape, policy: Policy, context_tokens: int) -> Iterator[Alternative]:
    """Other precisions, KV heads, block sizes and weights that hold at least one sequence of the context."""
    for choice, other, is_served in _others(case, native, policy):
        concurrency = other.max_concurrency(context_tokens)
        if concurrency:
            yield Alternative(
                choice=choice,
                bytes_per_token=other.bytes_per_token,
                capacity_tokens=other.num_blocks(context_tokens) * other.block_size,
                max_concurrency=concurrency,
                batch_limit=other.batch_limit(context_tokens),
                served=is_served,
            )


def _others(case: Case, native: ModelShape, policy: Policy) -> Iterator[tuple[str, Case, bool]]:
    for precision in Precision:
        if precision is case.precision or (precision is Precision.FP8 and not case.device.has_fp8):
            continue
        yield f"precision {precision}", replace(case, precision=precision), precision in served.PRECISIONS
    for heads in _other_heads(case, native, policy):
        try:
            shape = with_kv_heads(native, heads)
        except UnsupportedPolicy:
            continue
        yield f"kvHeads {heads}", replace(case, shape=shape), heads == native.kv_heads
    for size in BLOCK_SIZES:
        if size != case.block_size:
            yield f"blockSizeTokens {size}", replace(case, block_size=size), True
    for weights in (WeightFormat.BF16, WeightFormat.INT8):
        if weights is not case.weights:
            yield f"weights {weights}", replace(case, weights=weights), weights in served.WEIGHT_FORMATS


def _other_heads(case: Case, native: ModelShape, policy: Policy) -> list[int]:
    usual = {_USUAL_KV_HEADS} if native.kv_heads > _USUAL_KV_HEADS else set()
    return sorted({native.kv_heads, *policy.variants, *usual} - {case.shape.kv_heads}, reverse=True)
