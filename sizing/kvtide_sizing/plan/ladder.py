"""The ladder: what the same device holds as each strategy is added to the ones before it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from kvtide_sizing.devices.device import Device
from kvtide_sizing.errors import UnsupportedPolicy
from kvtide_sizing.formats import Precision
from kvtide_sizing.memory.sharding import with_kv_heads
from kvtide_sizing.plan.candidates import fewer_kv_heads
from kvtide_sizing.plan.case import Case
from kvtide_sizing.plan.planner import choose_case
from kvtide_sizing.plan.record import Plan
from kvtide_sizing.plan.workload import Policy, Workload
from kvtide_sizing.shape import ModelShape

_SMALLER = (Precision.INT8, Precision.K8V4, Precision.INT4)


@dataclass(frozen=True)
class Rung:
    """One way to use the device's memory, for sequences of the expected length.

    bytes_per_sequence:  what each one takes of the pool
    saving:              of that, against the first rung; 0 to 1
    sequences, tokens:   that the pool holds at once
    """

    name: str
    bytes_per_token: int
    bytes_per_sequence: int
    sequences: int
    tokens: int
    saving: float

    def to_json(self) -> dict[str, Any]:
        """The rung as JSON values."""
        return {
            "name": self.name,
            "bytesPerToken": self.bytes_per_token,
            "bytesPerSequence": self.bytes_per_sequence,
            "sequences": self.sequences,
            "tokens": self.tokens,
            "saving": round(self.saving, 4),
        }


def ladder(plan: Plan, shape: ModelShape, device: Device, workload: Workload, policy: Policy) -> list[Rung]:
    """Contiguous allocation, which gives each sequence its longest context at once; paging; then fewer KV heads, where
    the model has more than eight (or as many as the policy asks for); then INT8, K8V4 and INT4 on top.

    plan: of the same arguments; every rung has its context. A rung that saves nothing is left out.
    """
    context = plan.max_context_tokens
    bf16 = replace(policy, precision=Precision.BF16.value, kv_heads="Native")
    first = choose_case(shape, device, workload, bf16)
    whole = context * first.bytes_per_token
    rungs = [_rung("contiguous BF16", first, context, per_sequence=whole, whole=whole)]
    for name, case in _paged(first, shape, policy):
        rung = _rung(name, case, context, _paged_bytes(case, context), whole)
        if rung.bytes_per_token < rungs[-1].bytes_per_token or case is first:
            rungs.append(rung)
    return rungs


def _paged(first: Case, native: ModelShape, policy: Policy) -> Iterator[tuple[str, Case]]:
    yield f"paged BF16, blocks of {first.block_size}", first
    heads, case = fewer_kv_heads(native, policy), first
    if heads is not None:
        try:
            case = replace(first, shape=with_kv_heads(native, heads, trained=heads in policy.variants))
        except UnsupportedPolicy:  # its query heads cannot be shared so: the ladder goes on without
            pass
        else:
            yield f"+ {heads} KV heads of {native.kv_heads}", case
    for precision in _SMALLER:
        yield f"+ {precision}", replace(case, precision=precision)


def _paged_bytes(case: Case, context_tokens: int) -> int:
    layout = case.budget(context_tokens).layout
    return layout.sequence_blocks(case.expected_tokens(context_tokens)) * layout.block_bytes


def _rung(name: str, case: Case, context_tokens: int, per_sequence: int, whole: int) -> Rung:
    taken = case.budget(context_tokens)
    pool = taken.num_blocks(case.device.memory_bytes) * taken.block_bytes
    sequences = pool // per_sequence
    return Rung(
        name=name,
        bytes_per_token=case.bytes_per_token,
        bytes_per_sequence=per_sequence,
        sequences=sequences,
        tokens=sequences * case.expected_tokens(context_tokens),
        saving=max(0.0, 1 - per_sequence / whole),
    )
