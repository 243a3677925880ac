"""What each other choice would have given, all else the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvtide_sizing.errors import UnsupportedPolicy
from kvtide_sizing.formats import Precision
from kvtide_sizing.memory.sharding import with_kv_heads
from kvtide_sizing.memory.weights import WeightFormat
from kvtide_sizing.plan.candidates import fewer_kv_heads
from kvtide_sizing.plan.case import Case
from kvtide_sizing.plan.record import Alternative
from kvtide_sizing.plan.unserved import unserved
from kvtide_sizing.plan.workload import BLOCK_SIZES, Policy
from kvtide_sizing.shape import ModelShape


def alternatives(case: Case, native: ModelShape, policy: Policy, context_tokens: int) -> Iterator[Alternative]:
    """Other precisions, KV heads, block sizes and weights that hold at least one sequence of the context."""
    for choice, other in _others(case, native, policy):
        concurrency = other.max_concurrency(context_tokens)
        if concurrency:
            yield Alternative(
                choice=choice,
                bytes_per_token=other.bytes_per_token,
                capacity_tokens=other.num_blocks(context_tokens) * other.block_size,
                max_concurrency=concurrency,
                batch_limit=other.batch_limit(context_tokens),
                served=not any(unserved(other, native)),
            )


def _others(case: Case, native: ModelShape, policy: Policy) -> Iterator[tuple[str, Case]]:
    for precision in Precision:
        other = replace(case, precision=precision)
        known = precision is not Precision.FP8 or case.device.has_fp8
        # A latent is stored as a key: K8V4 is INT8 there.
        if known and precision is not case.precision and other.block_bytes != case.block_bytes:
            yield f"precision {precision}", other
    for heads in _other_heads(case, native, policy):
        try:
            yield (
                f"kvHeads {heads}",
                replace(case, shape=with_kv_heads(native, heads, trained=heads in policy.variants)),
            )
        except UnsupportedPolicy:  # its query heads cannot be shared so
            continue
    for size in BLOCK_SIZES:
        if size != case.block_size:
            yield f"blockSizeTokens {size}", replace(case, block_size=size)
    for weights in (WeightFormat.BF16, WeightFormat.INT8):
        if weights is not case.weights:
            yield f"weightPrecision {weights}", replace(case, weights=weights)


def _other_heads(case: Case, native: ModelShape, policy: Policy) -> list[int]:
    fewer = fewer_kv_heads(native, policy)
    others = {native.kv_heads, *policy.variants, *([] if fewer is None else [fewer])}
    return sorted(
        (heads for heads in others if heads <= native.kv_heads and heads != case.shape.kv_heads), reverse=True
    )
