"""The ladder of allocation: what the same pool would hold if it were cut in another way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvtide_sizing.plan.record import Plan
from kvtide_sizing.plan.workload import Workload


@dataclass(frozen=True)
class Rung:
    """One way to use the pool, for sequences of the expected length.

    bytes_per_sequence:  what each one takes of the pool
    saving:              of that, against the first rung; 0 to 1
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


def ladder(plan: Plan, workload: Workload) -> list[Rung]:
    """Contiguous allocation, which gives each sequence its longest context at once, and then paging."""
    kv = plan.kv
    expected = min(workload.mean_sequence_tokens, plan.max_context_tokens)
    contiguous = plan.max_context_tokens * kv.bytes_per_token
    paged = -(-expected // kv.block_size_tokens) * kv.bytes_per_block
    return [
        Rung(
            name=name,
            bytes_per_token=kv.bytes_per_token,
            bytes_per_sequence=per_sequence,
            sequences=kv.pool_bytes // per_sequence,
            tokens=kv.pool_bytes // per_sequence * expected,
            saving=max(0.0, 1 - per_sequence / contiguous),
        )
        for name, per_sequence in (
            (f"contiguous {kv.precision}", contiguous),
            (f"paged {kv.precision}, blocks of {kv.block_size_tokens}", paged),
        )
    ]
