"""One KV format that reads several token sequences at once, through a pool and the attention that serve."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvtide_kernels.attention import HeldTable, PagedAttention, SequenceSpan
from kvtide_kernels.backends import attention_over
from kvtide_kernels.pool import KVPool
from kvtide_sizing.formats import LayerFormat
from kvtide_sizing.memory.kv import KvLayout, kv_layout
from kvtide_worker.models.model import Model
from kvtide_worker.quality.attention import InBfloat16, Recorded, Recording
from kvtide_worker.quality.subject import Subject


class Reader:
    """Sequences that grow in a pool of their own.

    attention:   over that pool
    sequences:   of each its block tables, as the layout has them
    """

    def __init__(
        self,
        model: Model,
        attention: PagedAttention,
        sequences: Sequence[Sequence[HeldTable]],
        device: torch.device,
    ) -> None:
        self.model, self._attention, self._sequences, self._device = model, attention, sequences, device
        self._lengths = [0] * len(sequences)

    @classmethod
    def open(cls, measured: Subject, formats: Sequence[LayerFormat], capacities: Sequence[int]) -> Reader:
        """A reader of sequences of up to so many tokens each, in each layer's format.

        Raises ValueError for what the attention does not serve.
        """
        config, (pool, sequences) = measured.model.config, held_pool(measured, formats, capacities)
        bases = {layer: basis for layer, basis in measured.bases.items() if formats[layer].has_key_basis}
        attention = attention_over(pool, query_heads=config.query_heads, scale=config.attention_scale, bases=bases)
        return cls(measured.model, InBfloat16(attention), sequences, measured.device)

    def read(self, tokens: Sequence[Sequence[int]], record: Recording | None = None) -> torch.Tensor:
        """Append new tokens to each sequence, to some none. Logits [sequences with new ones, vocabulary] of their last.

        A sequence with one new token decodes, one with more reads them as a chunk. record: takes what attention was
        asked, for other readers to replay.
        """
        spans = self._append(tokens)
        step = self._attention.plan(spans)
        positions = [position for span in spans for position in range(span.past_tokens, span.total_tokens)]
        lengths = torch.tensor([span.new_tokens for span in spans], device=self._device)
        return self.model.forward(
            torch.tensor([token for new in tokens for token in new], device=self._device),
            torch.tensor(positions, device=self._device),
            step if record is None else Recorded(step, record),
            lengths.cumsum(0) - 1,
        )

    @torch.inference_mode()
    def replay(self, tokens: Sequence[Sequence[int]], recording: Recording) -> None:
        """Append what another reader recorded as its first chunks: to store it is all that is left to do.

        A first chunk attends to itself as it came, so that no layer's queries, keys and values hang on the format.
        """
        step = self._attention.plan(self._append(tokens))
        for layer, (query, key, value) in recording.items():
            step.run(layer, query, key, value)

    def _append(self, tokens: Sequence[Sequence[int]]) -> list[SequenceSpan]:
        reading = [index for index, new in enumerate(tokens) if new]
        spans = [SequenceSpan(self._sequences[index], self._lengths[index], len(tokens[index])) for index in reading]
        for index, span in zip(reading, spans, strict=True):
            self._lengths[index] = span.total_tokens
        return spans


def held_pool(
    measured: Subject, formats: Sequence[LayerFormat], capacities: Sequence[int]
) -> tuple[KVPool, list[list[HeldTable]]]:
    """A pool for sequences of up to so many tokens each, and their block tables. Raises ValueError as
    `KVPool.allocate`."""
    config = measured.model.config
    layout = kv_layout(measured.shape, formats, measured.block_size, max(capacities))
    sequences, num_blocks = held_tables(layout, capacities)
    pool = KVPool.allocate(
        layout,
        formats,
        num_blocks=num_blocks,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        device=measured.device,
    )
    return pool, sequences


def held_tables(layout: KvLayout, capacities: Sequence[int]) -> tuple[list[list[HeldTable]], int]:
    """Block tables for sequences of up to so many tokens, and how many blocks they take of a pool."""
    sequences, taken = [], 0
    for capacity in capacities:
        tables = []
        for _ in layout.tables:
            recent = taken + -(-capacity // layout.block_size)
            end = recent + layout.recent_blocks
            tables.append(HeldTable(range(taken, recent), range(recent, end)))
            taken = end
        sequences.append(tables)
    return sequences, taken
