"""Paged attention in plain torch, for pools that are stored as they are: what runs where no kernel can be compiled.

Not yet run on a GPU: the operations exist there, the numbers have not been checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from kvtide_kernels.attention import SequenceSpan
from kvtide_kernels.pool import KVPool
from kvtide_kernels.torch_decode import DecodeGroup, decode_groups
from kvtide_kernels.torch_gather import dense
from kvtide_kernels.torch_prefill import PrefillChunk, prefill_chunk


@dataclass(frozen=True)
class _TableStep:
    """What the layers of one table share in a step.

    write_rows:  per new token and head, its row in a layer's keys seen as [-1, head_dim]
    decodes, prefills:  each with the rows of the pool that it gathers, [sequences, kv_heads, blocks]
    """

    write_rows: torch.Tensor
    decodes: list[tuple[DecodeGroup, torch.Tensor]]
    prefills: list[tuple[PrefillChunk, torch.Tensor]]


@dataclass(frozen=True)
class TorchAttentionStep:
    """A planned step.

    Its memory, in elements. `run` takes its result, tokens · query_heads · head_dim; and for one group of decodes, or
    one prefill chunk, at a time

        2 · gathered · kv_heads · head_dim                  a copy of its keys and values
        2 · sequences · query_heads · head_dim              a group's queries and results, or
            new · query_heads · head_dim                    a chunk's results
        gathered / block_size · kv_heads                    int64, where its blocks are
        (sequences or new) · query_heads                    float32, torch's sums of the softmax

    gathered of a group:  at most max(GATHER_TOKENS, block_size · the most `needed_blocks` of a sequence)
    gathered of a chunk:  block_size · its `needed_blocks`, which a window bounds

    and for every thread of the CPU torch's own tile, of at most 256 queries by 512 keys, in float32 and again in the
    pool's dtype. From `plan` to the step's end there are, for each window of the layout (None is one),

        new · attended          a chunk's bias in the pool's dtype, twice while a window's is made; none without a past
        gathered                a group's bias in the pool's dtype
        kv_heads · stale        int64, of a group: less than a block for each sequence

    and for each table kv_heads in int64 for each new token and for each gathered block.
    """

    attention: TorchAttention
    tables: list[_TableStep]

    def run(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """As `AttentionStep.run`."""
        attention = self.attention
        head_dim, step = attention.pool.head_dim, self.tables[attention.pool.layers[layer].table]
        keys, values = attention.keys[layer], attention.values[layer]
        keys.view(-1, head_dim).index_copy_(0, step.write_rows, key.reshape(-1, head_dim))
        values.view(-1, head_dim).index_copy_(0, step.write_rows, value.reshape(-1, head_dim))

        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        for group, block_rows in step.decodes:
            out[group.token_rows] = group.attend(query, keys, values, block_rows, attention.scale)
        for chunk, block_rows in step.prefills:
            out[chunk.start : chunk.end] = chunk.attend(query, keys, values, block_rows, attention.scale)
        return out


class _Writes:
    """Where the step's new tokens go: the same places in every table, of which only the block ids differ."""

    def __init__(self, spans: Sequence[SequenceSpan], block_size: int, device: torch.device) -> None:
        self._spans = spans
        self._numbers = [range(span.past_tokens // block_size, -(-span.total_tokens // block_size)) for span in spans]
        positions: list[int] = []
        places: list[int] = []
        written = 0
        for span, numbers in zip(spans, self._numbers, strict=True):
            new = range(span.past_tokens, span.total_tokens)
            positions += new
            places += (written + position // block_size - numbers.start for position in new)
            written += len(numbers)
        self.slots = torch.tensor(positions, device=device) % block_size
        self._places = torch.tensor(places, device=device)

    def blocks(self, table: int) -> torch.Tensor:
        """The block of each new token in a table: [tokens]."""
        written = zip(self._spans, self._numbers, strict=True)
        ids = [block for span, numbers in written for block in span.block_ids(table, numbers)]
        return torch.tensor(ids, device=self._places.device)[self._places]


class TorchAttention:
    """Paged attention by copying blocks into dense tensors, and torch's own attention over those.

    scale: what scores are multiplied with

    Raises ValueError for a pool that packs keys or values.
    """

    def __init__(self, pool: KVPool, *, scale: float) -> None:
        self.pool = pool
        self.scale = scale
        self.keys = tuple(dense(layer.key, pool) for layer in pool.layers)
        self.values = tuple(dense(layer.value, pool) for layer in pool.layers)
        self._device = pool.storage.device
        self._heads = torch.arange(pool.kv_heads, device=self._device)

    def plan(self, spans: Sequence[SequenceSpan]) -> TorchAttentionStep:
        """As `PagedAttention.plan`. Groups and masks are made once for each window, block ids for each table."""
        layout = self.pool.layout
        for span in spans:
            span.check(layout)
        starts = list(accumulate((span.new_tokens for span in spans), initial=0))[:-1]
        decoding = [(start, span) for start, span in zip(starts, spans, strict=True) if span.new_tokens == 1]
        prefilling = [(start, span) for start, span in zip(starts, spans, strict=True) if span.new_tokens > 1]
        writes = _Writes(spans, layout.block_size, self._device)
        by_window: dict[int | None, tuple[list[DecodeGroup], list[PrefillChunk]]] = {}
        tables = []
        for index, table in enumerate(layout.tables):
            if table.window not in by_window:
                by_window[table.window] = (
                    decode_groups(decoding, table, self.pool),
                    [prefill_chunk(start, span, table, self.pool) for start, span in prefilling],
                )
            groups, chunks = by_window[table.window]
            tables.append(
                _TableStep(
                    self._write_rows(writes, index),
                    [(group, self._gathered_rows(group.block_ids(index))) for group in groups],
                    [(chunk, self._gathered_rows(chunk.block_ids(index))) for chunk in chunks],
                )
            )
        return TorchAttentionStep(self, tables)

    def _write_rows(self, writes: _Writes, table: int) -> torch.Tensor:
        rows = self._block_rows(writes.blocks(table)) * self.pool.layout.block_size
        return (rows + writes.slots[:, None]).flatten()

    def _gathered_rows(self, block_ids: list[list[int]]) -> torch.Tensor:
        ids = torch.tensor(block_ids, dtype=torch.int64, device=self._device)
        return self._block_rows(ids).transpose(1, 2)

    def _block_rows(self, blocks: torch.Tensor) -> torch.Tensor:
        """[…] block ids to […, kv_heads] rows of the pool seen as [num_blocks * kv_heads, …]."""
        return blocks[..., None] * self.pool.kv_heads + self._heads
