"""What every attention backend offers: a plan on the host once a step, then a run in each layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import torch

from kvtide_sizing.memory.kv import KvLayout, TableLayout


@dataclass(frozen=True)
class HeldTable:
    """A `BlockTable` that stays as it is, for whoever lays sequences out without a block manager."""

    blocks: Sequence[int]
    recent: Sequence[int] = ()
    first: int = 0


def seen_in_text(tokens: int, window: int | None, device: torch.device) -> torch.Tensor:
    """Which tokens [tokens, tokens] each of a sequence's first tokens attends to: bool, true where it does."""
    position = torch.arange(tokens, device=device)
    behind = position[:, None] - position
    return (behind >= 0) & (behind < (tokens if window is None else window))


class BlockTable(Protocol):
    """One sequence's blocks for the layers of one table, without those that it gave back behind its window."""

    @property
    def first(self) -> int:
        """How many blocks it gave back: token t lies in blocks[t // block_size - first] at t % block_size."""
        ...

    @property
    def blocks(self) -> Sequence[int]:
        """The blocks that are left, in order."""
        ...

    @property
    def recent(self) -> Sequence[int]:
        """The blocks of its recent tokens, `KvLayout.recent_blocks` of them: nobody else's."""
        ...


@dataclass(frozen=True)
class SequenceSpan:
    """One sequence's share of a step: new_tokens that follow past_tokens whose keys and values the pool has.

    tables:       its block tables, as the layout has them; each holds the new tokens too, and what they attend to
    recent_from:  the oldest token that its recent blocks may have: what was written before it came from elsewhere
    A decode step has one new token, a prefill chunk has more.

    In layers with a 4-bit side the last tokens are attended to in BF16. A chunk's own are taken as they came, and of
    its past the recent ones; a decode's own token counts among the recent ones.
    """

    tables: Sequence[BlockTable]
    past_tokens: int
    new_tokens: int
    recent_from: int = 0

    @property
    def total_tokens(self) -> int:
        """Past and new tokens."""
        return self.past_tokens + self.new_tokens

    def recent_tokens(self, layout: KvLayout) -> range:
        """The tokens that the recent blocks have once a decode has written its own, or before a chunk writes any.

        Every token attends to those of them that its window lets it see in BF16, and to older ones as they are stored.
        """
        end = self.total_tokens if self.new_tokens == 1 else self.past_tokens
        return range(min(end, max(self.recent_from, end - layout.recent)), end)

    def needed_blocks(self, table: TableLayout, block_size: int) -> range:
        """The numbers of a table's blocks that the new tokens lie in or attend to."""
        return range(table.first_needed(self.past_tokens) // block_size, -(-self.total_tokens // block_size))

    def block_ids(self, table: int, numbers: range) -> list[int]:
        """The blocks of these numbers in that one of its tables."""
        held = self.tables[table]
        return list(islice(held.blocks, numbers.start - held.first, numbers.stop - held.first))

    def check(self, layout: KvLayout) -> None:
        """Raise ValueError where the span cannot be run: nothing to compute, or a token without its block."""
        if self.new_tokens < 1 or self.past_tokens < 0:
            raise ValueError(f"a span needs new tokens, but has {self.new_tokens} after {self.past_tokens}")
        if len(self.tables) != len(layout.tables):
            raise ValueError(f"a span has {len(self.tables)} block tables, but the layout {len(layout.tables)}")
        for number, (table, of_layers) in enumerate(zip(self.tables, layout.tables, strict=True)):
            if len(table.recent) != layout.recent_blocks:
                raise ValueError(
                    f"the last {layout.recent} tokens need {layout.recent_blocks} blocks of {layout.block_size}, but "
                    f"table {number} has {len(table.recent)} for them"
                )
            needed = self.needed_blocks(of_layers, layout.block_size)
            held = range(table.first, table.first + len(table.blocks))
            if not held.start <= needed.start < needed.stop <= held.stop:
                raise ValueError(
                    f"{self.new_tokens} tokens after {self.past_tokens} need the blocks {needed.start} to "
                    f"{needed.stop - 1} of {layout.block_size}, but table {number} holds {len(held)} "
                    f"from {held.start} on"
                )


class AttentionStep(Protocol):
    """A planned step: block tables, slots and lengths are on the device already."""

    def run(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Write the step's keys and values to the layer's blocks; each new token attends to its sequence.

        query [tokens, query_heads, head_dim]; key, value [tokens, kv_heads, head_dim]: the spans' new tokens
        one after another, RoPE applied. Returns [tokens, query_heads, head_dim]. A token attends to itself and to
        all before it, or to the last ones of its layer's window.
        """
        ...


class PagedAttention(Protocol):
    """Attention over one KV pool."""

    def plan(self, spans: Sequence[SequenceSpan]) -> AttentionStep:
        """Prepare a step. Raises ValueError for a span without new tokens or with too few blocks."""
        ...
