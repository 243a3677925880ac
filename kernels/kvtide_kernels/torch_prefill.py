"""Prefill in plain torch: one sequence's chunk of several new tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from kvtide_kernels.attention import SequenceSpan
from kvtide_kernels.pool import KVPool
from kvtide_kernels.torch_gather import dense_dtype, gather
from kvtide_sizing.memory.kv import TableLayout


@dataclass(frozen=True)
class PrefillChunk:
    """The new tokens [start, end) of the flat batch, all of one sequence: what all tables of one window share.

    needed:    the numbers of the blocks that it gathers
    attended:  the gathered tokens from the first that any of them attends to, to the last new one
    bias:      [new, attended], 0 for what a token attends to and -inf for the rest; None where the chunk has no past
               and no token is out of its window, a case that torch has itself
    """

    span: SequenceSpan
    start: int
    needed: range
    attended: slice
    bias: torch.Tensor | None

    @property
    def end(self) -> int:
        """The row behind its last token."""
        return self.start + self.span.new_tokens

    def block_ids(self, table: int) -> list[list[int]]:
        """What it gathers of a table, [1, blocks]."""
        return [self.span.block_ids(table, self.needed)]

    def attend(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, block_rows: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """The chunk's rows of query [tokens, query_heads, head_dim], attended: [new, …, …]."""
        attended = scaled_dot_product_attention(
            query[None, self.start : self.end].transpose(1, 2),
            gather(keys, block_rows)[:, :, self.attended],
            gather(values, block_rows)[:, :, self.attended],
            attn_mask=self.bias,
            is_causal=self.bias is None,
            scale=scale,
            enable_gqa=True,
        )
        return attended[0].transpose(0, 1)


def prefill_chunk(start: int, span: SequenceSpan, table: TableLayout, pool: KVPool) -> PrefillChunk:
    """The chunk for the tables of this one's window; start is its row in the flat batch."""
    block_size = pool.layout.block_size
    first, needed = table.first_needed(span.past_tokens), span.needed_blocks(table, block_size)
    lead = first - needed.start * block_size
    causal = span.past_tokens == 0 and (table.window is None or span.total_tokens <= table.window)
    return PrefillChunk(
        span=span,
        start=start,
        needed=needed,
        attended=slice(lead, lead + span.total_tokens - first),
        bias=None if causal else _bias(span, first, table.window, pool),
    )


def _bias(span: SequenceSpan, first: int, window: int | None, pool: KVPool) -> torch.Tensor:
    """Row i is the token past + i, column j the token first + j: it is seen where it is not later, and in the window.

    past 3, new 3, first 1, window 3        j  1 2 3 4 5
                                            3  # # # . .
                                            4  . # # # .
                                            5  . . # # #
    """
    itself = span.past_tokens - first
    hidden = torch.full(
        (span.new_tokens, span.total_tokens - first),
        float("-inf"),
        dtype=dense_dtype(pool),
        device=pool.storage.device,
    )
    if window is None or span.total_tokens - first <= window:
        return hidden.triu_(itself + 1)
    return hidden.triu(itself + 1).add_(hidden.tril_(itself - window))
