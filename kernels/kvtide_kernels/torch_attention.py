"""Paged attention in plain torch: the backend of the CPU, and the one that every other is measured against.

Not yet run on a GPU: the operations exist there, the numbers have not been checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from kvtide_kernels.attention import SequenceSpan
from kvtide_kernels.pool import KVPool


def _gather(pool_side: torch.Tensor, block_rows: torch.Tensor) -> torch.Tensor:
    """Copy blocks of one layer's keys or values out as a dense [sequences, kv_heads, tokens, head_dim].

    block_rows [sequences, kv_heads, blocks]: rows of pool_side seen as [num_blocks * kv_heads, -1].
    """
    num_blocks, kv_heads, block_size, head_dim = pool_side.shape
    rows = pool_side.view(num_blocks * kv_heads, block_size * head_dim)
    return rows.index_select(0, block_rows.flatten()).view(block_rows.shape[0], kv_heads, -1, head_dim)


@dataclass(frozen=True)
class _DecodeGroup:
    """Sequences of about the same length with one new token each.

    token_rows:  their rows in the flat batch
    block_rows:  what `_gather` needs
    bias:        [sequences, 1, 1, tokens], 0 for the sequence's own tokens and -inf behind its end
    stale_rows:  rows of the gathered copy, seen as [-1, head_dim], that are behind a sequence's end. They are
                 zeroed, as the bias does not stop a NaN that somebody else left in a block: 0 * NaN is NaN
    """

    token_rows: torch.Tensor
    block_rows: torch.Tensor
    bias: torch.Tensor
    stale_rows: torch.Tensor

    def attend(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """These sequences' rows of query [tokens, query_heads, head_dim], attended: [sequences, …, …]."""
        _, query_heads, head_dim = query.shape
        kv_heads = keys.shape[1]
        # The query heads of one KV head stand where several tokens would: K and V are not repeated.
        grouped = query[self.token_rows].view(-1, kv_heads, query_heads // kv_heads, head_dim)
        attended = scaled_dot_product_attention(grouped, self._own(keys), self._own(values), attn_mask=self.bias)
        return attended.reshape(-1, query_heads, head_dim)

    def _own(self, pool_side: torch.Tensor) -> torch.Tensor:
        dense = _gather(pool_side, self.block_rows)
        dense.view(-1, dense.shape[-1]).index_fill_(0, self.stale_rows, 0.0)
        return dense


@dataclass(frozen=True)
class _PrefillChunk:
    """The new tokens [start, end) of the flat batch, all of one sequence of total_tokens with this chunk.

    bias [new, total] is causal, aligned at the end; None without a past, a case that torch has itself.
    """

    start: int
    end: int
    total_tokens: int
    block_rows: torch.Tensor
    bias: torch.Tensor | None

    def attend(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """The chunk's rows of query [tokens, query_heads, head_dim], attended: [new, …, …]."""
        attended = scaled_dot_product_attention(
            query[None, self.start : self.end].transpose(1, 2),
            _gather(keys, self.block_rows)[:, :, : self.total_tokens],
            _gather(values, self.block_rows)[:, :, : self.total_tokens],
            attn_mask=self.bias,
            is_causal=self.bias is None,
            enable_gqa=True,
        )
        return attended[0].transpose(0, 1)


@dataclass(frozen=True)
class TorchAttentionStep:
    """A planned step. write_rows: per token and head, its row in a layer's keys seen as [-1, head_dim]."""

    pool: KVPool
    write_rows: torch.Tensor
    decodes: list[_DecodeGroup]
    prefills: list[_PrefillChunk]

    def run(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """As `AttentionStep.run`."""
        head_dim = self.pool.head_dim
        keys, values = self.pool.keys[layer], self.pool.values[layer]
        keys.view(-1, head_dim).index_copy_(0, self.write_rows, key.reshape(-1, head_dim))
        values.view(-1, head_dim).index_copy_(0, self.write_rows, value.reshape(-1, head_dim))

        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        for group in self.decodes:
            out[group.token_rows] = group.attend(query, keys, values)
        for chunk in self.prefills:
            out[chunk.start : chunk.end] = chunk.attend(query, keys, values)
        return out


class TorchAttention:
    """Paged attention by copying blocks into dense tensors, and torch's own attention over those."""

    def __init__(self, pool: KVPool) -> None:
        self._pool = pool
        self._device = pool.storage.device
        self._heads = torch.arange(pool.kv_heads, device=self._device)

    def plan(self, spans: Sequence[SequenceSpan]) -> TorchAttentionStep:
        """As `PagedAttention.plan`. Decodes with the same block count, up to a power of two, go together."""
        positions: list[int] = []
        blocks: list[int] = []
        groups: dict[int, list[tuple[int, SequenceSpan]]] = {}
        prefills: list[_PrefillChunk] = []
        block_size = self._pool.block_size
        for span in spans:
            span.check(block_size)
            start = len(positions)
            new = range(span.past_tokens, span.total_tokens)
            positions.extend(new)
            blocks.extend(span.block_table[position // block_size] for position in new)
            if span.new_tokens == 1:
                size_class = (self._num_blocks(span) - 1).bit_length()
                groups.setdefault(size_class, []).append((start, span))
            else:
                prefills.append(self._prefill(start, span))
        slots = self._tensor(positions) % block_size
        write_rows = self._block_rows(self._tensor(blocks)) * block_size + slots[:, None]
        decodes = [self._decode(group) for group in groups.values()]
        return TorchAttentionStep(self._pool, write_rows.flatten(), decodes, prefills)

    def _decode(self, members: list[tuple[int, SequenceSpan]]) -> _DecodeGroup:
        width = max(self._num_blocks(span) for _, span in members)
        # A short table is padded with its own first block: behind the end, and never another sequence's data.
        tables = [
            self._own_blocks(span) + [span.block_table[0]] * (width - self._num_blocks(span)) for _, span in members
        ]
        lengths = self._tensor([span.total_tokens for _, span in members])
        behind = torch.arange(width * self._pool.block_size, device=self._device) >= lengths[:, None]
        bias = torch.zeros(behind.shape, dtype=self._pool.storage.dtype, device=self._device)
        bias.masked_fill_(behind, float("-inf"))
        stale = behind[:, None].expand(-1, self._pool.kv_heads, -1).flatten().nonzero().flatten()
        return _DecodeGroup(
            token_rows=self._tensor([start for start, _ in members]),
            block_rows=self._block_rows(self._tensor(tables)).transpose(1, 2),
            bias=bias[:, None, None],
            stale_rows=stale,
        )

    def _prefill(self, start: int, span: SequenceSpan) -> _PrefillChunk:
        bias = None
        if span.past_tokens:
            shape = (span.new_tokens, span.total_tokens)
            bias = torch.full(shape, float("-inf"), dtype=self._pool.storage.dtype, device=self._device)
            bias = bias.triu_(span.past_tokens + 1)
        table = self._tensor([self._own_blocks(span)])
        return _PrefillChunk(
            start=start,
            end=start + span.new_tokens,
            total_tokens=span.total_tokens,
            block_rows=self._block_rows(table).transpose(1, 2),
            bias=bias,
        )

    def _num_blocks(self, span: SequenceSpan) -> int:
        return -(-span.total_tokens // self._pool.block_size)

    def _own_blocks(self, span: SequenceSpan) -> list[int]:
        return list(span.block_table[: self._num_blocks(span)])

    def _block_rows(self, blocks: torch.Tensor) -> torch.Tensor:
        """[…] block ids to […, kv_heads] rows of the pool seen as [num_blocks * kv_heads, …]."""
        return blocks[..., None] * self._pool.kv_heads + self._heads

    def _tensor(self, values: list[int] | list[list[int]]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)
