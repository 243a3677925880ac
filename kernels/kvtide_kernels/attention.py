"""What every attention backend offers: a plan on the host once a step, then a run in each layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True)
class SequenceSpan:
    """One sequence's share of a step: new_tokens that follow past_tokens whose keys and values the pool has.

    block_table holds the blocks of past and new tokens in order: token t lies in block_table[t // block_size]
    at t % block_size. A decode step has one new token, a prefill chunk has more.
    """

    block_table: Sequence[int]
    past_tokens: int
    new_tokens: int

    @property
    def total_tokens(self) -> int:
        """Tokens that the pool holds after the step."""
        return self.past_tokens + self.new_tokens

    def check(self, block_size: int) -> None:
        """Raise ValueError where the span cannot be run: nothing to compute, or tokens without a block."""
        if self.new_tokens < 1 or self.past_tokens < 0:
            raise ValueError(f"a span needs new tokens, but has {self.new_tokens} after {self.past_tokens}")
        if self.total_tokens > len(self.block_table) * block_size:
            raise ValueError(
                f"{self.total_tokens} tokens do not fit the {len(self.block_table)} blocks "
                f"of {block_size} in their table"
            )


class AttentionStep(Protocol):
    """A planned step: block tables, slots and lengths are on the device already, the same for every layer."""

    def run(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Write the step's keys and values to the layer's blocks; each new token attends to its sequence.

        query [tokens, query_heads, head_dim]; key, value [tokens, kv_heads, head_dim]: the spans' new tokens
        one after another, RoPE applied. Returns [tokens, query_heads, head_dim]. Scores are scaled by
        head_dim ** -0.5.
        """
        ...


class PagedAttention(Protocol):
    """Attention over one KV pool."""

    def plan(self, spans: Sequence[SequenceSpan]) -> AttentionStep:
        """Prepare a step. Raises ValueError for a span without new tokens or with too few blocks."""
        ...
