"""A decode step's plan that stays where it is from step to step, so that a CUDA graph of it can be replayed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from kvtide_kernels.attention import SequenceSpan
from kvtide_kernels.triton.items import most_items
from kvtide_kernels.triton.plan import Arrays, TablePlan, plans_in, table_arrays, to_host
from kvtide_kernels.triton.step import Parts, Rotary, TritonAttentionStep
from kvtide_sizing.memory.kv import TableLayout

if TYPE_CHECKING:
    from kvtide_kernels.triton.attention import TritonAttention


class GraphPlan:
    """An `AttentionStep` of decodes with room for so many sequences, which is refilled where it lies.

    sequences:  rows of the batch, whether a sequence has them or not; rows beyond the spans come back as anything
    tokens:     of the longest sequence, its new one included
    split:      whether sequences are cut into items. By default where a full batch of them would not fill the device;
                then reduction costs a launch more, and otherwise one long sequence may run behind all others.

    `run` launches the same kernels in the same sizes over the same memory whatever `refill` wrote last: capture one
    `run` of each layer, then refill and replay, on one stream. Raises ValueError for room for nothing.
    """

    def __init__(self, attention: TritonAttention, *, sequences: int, tokens: int, split: bool | None = None) -> None:
        if sequences < 1 or tokens < 1:
            raise ValueError(f"a plan has room for a sequence of a token at least, not for {sequences} of {tokens}")
        self.attention, self.sequences, self.tokens = attention, sequences, tokens
        grid = attention.grid
        self.split = sequences * grid.heads < grid.programs if split is None else split
        self._items = most_items(sequences, tokens, grid) if self.split else sequences
        device = attention.pool.storage.device
        empty = self._arrays([])
        self._flat = to_host(empty, device).to(device)
        self._tables = plans_in(self._flat, empty)

    @property
    def tables(self) -> tuple[TablePlan, ...]:
        """What the kernels read."""
        return self._tables

    def refill(self, spans: Sequence[SequenceSpan]) -> None:
        """Make these the step's sequences, in one copy to the device that the host does not wait for.

        Raises ValueError as `PagedAttention.plan` does, for a span of more than one new token, and where there are more
        or longer sequences than there is room for.
        """
        if len(spans) > self.sequences:
            raise ValueError(
                f"{len(spans)} sequences are more than the {self.sequences} that this plan has room for; "
                f"make one for more"
            )
        for number, span in enumerate(spans):
            if span.new_tokens != 1:
                raise ValueError(
                    f"this plan is of decodes, but span {number} has {span.new_tokens} new tokens; "
                    f"`TritonAttention.plan` takes chunks"
                )
            if span.total_tokens > self.tokens:
                raise ValueError(
                    f"span {number} has {span.total_tokens} tokens, but this plan has room for {self.tokens} of each; "
                    f"make one for longer sequences"
                )
        host = to_host(self._arrays(spans), self._flat.device)
        self._flat.copy_(host, non_blocking=True)

    def run(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, rotary: Rotary | None = None
    ) -> torch.Tensor:
        """As `TritonAttentionStep.run`, with a row for each of `sequences`."""
        attention = self.attention
        # Here, so that all layers of all graphs that share a pool of memory have the same.
        parts = Parts.empty(
            self._items * attention.query_heads if self.split else 0, attention.pool.head_dim, query.device
        )
        return TritonAttentionStep(attention, self._tables, parts).run(layer, query, key, value, rotary=rotary)

    def _arrays(self, spans: Sequence[SequenceSpan]) -> list[Arrays]:
        """Each table's, as long as they ever are."""
        layout, grid = self.attention.pool.layout, self.attention.grid
        found = []
        for number, table in enumerate(layout.tables):
            arrays = table_arrays(spans, number, layout, grid, least_blocks=self._most_blocks(table), split=self.split)
            rows = {"slots": self.sequences, "recent_slots": self.sequences, "decodes": self._items}
            rows |= {"tables": self.sequences, "recent_tables": self.sequences, "prefills": 0}
            rows |= {"parts": self.sequences if self.split else 0}
            found.append(
                {
                    # No slot is written and no item has tokens, where there is no sequence.
                    name: one.padded(rows[name], -1 if name.endswith("slots") else 0)
                    for name, one in arrays.items()
                }
            )
        return found

    def _most_blocks(self, table: TableLayout) -> int:
        """Blocks in a table's row: those that a sequence needs, and what makes the first one's number even."""
        layout = self.attention.pool.layout
        before = max(1, layout.recent // layout.block_size) - 1
        return before + table.sequence_blocks(self.tokens, layout.block_size)
