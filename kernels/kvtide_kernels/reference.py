"""Paged attention as the formula says it: the oracle of every backend. In float64, a token at a time where need be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kvtide_kernels.attention import SequenceSpan
from kvtide_kernels.block_view import BlockView
from kvtide_kernels.codec import decode, encode
from kvtide_sizing.formats import LayerFormat, VectorFormat
from kvtide_sizing.memory.kv import KvLayout


@dataclass(frozen=True)
class StoredLayer:
    """One layer's blocks, and what its attention adds.

    key, value:  uint8 [num_blocks, kv_heads, block_size · vector bytes], as `BlockView` reads them
    soft_cap:    scores become soft_cap · tanh(score / soft_cap)
    sinks:       [query_heads], a score each that joins the softmax's sum and has no value
    """

    format: LayerFormat
    key: torch.Tensor
    value: torch.Tensor
    soft_cap: float | None = None
    sinks: torch.Tensor | None = None


class ReferenceAttention:
    """Attention over blocks in any format, for layers of any widths; scale is what scores are multiplied with.

    A chunk's new tokens attend to one another as they came and to the past as it is stored. A span of one new token, a
    decode, attends to that as it is stored too.
    """

    def __init__(self, layout: KvLayout, layers: Sequence[StoredLayer], *, scale: float) -> None:
        self._layout = layout
        self._layers = layers
        self._scale = scale

    def plan(self, spans: Sequence[SequenceSpan]) -> ReferenceStep:
        """As `PagedAttention.plan`."""
        for span in spans:
            span.check(self._layout)
        return ReferenceStep(self._layout, self._layers, self._scale, spans)


@dataclass(frozen=True)
class ReferenceStep:
    """A planned step."""

    layout: KvLayout
    layers: Sequence[StoredLayer]
    scale: float
    spans: Sequence[SequenceSpan]

    def run(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """As `AttentionStep.run`; value may have another width than key, which is the result's then."""
        of_layer = self.layers[layer]
        table = next(number for number, table in enumerate(self.layout.tables) if layer in table.layers)
        attended, start = [], 0
        for span in self.spans:
            own = slice(start, start + span.new_tokens)
            attended.append(self._attend(of_layer, table, span, query[own], key[own], value[own]))
            start = own.stop
        return torch.cat(attended)

    def _attend(
        self,
        of_layer: StoredLayer,
        table: int,
        span: SequenceSpan,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
    ) -> torch.Tensor:
        keys = self._stored(of_layer.format.key, of_layer.key, table, span, key)
        values = self._stored(of_layer.format.value, of_layer.value, table, span, value)
        oldest = span.total_tokens - len(keys)
        return attend(
            query,
            keys,
            values,
            scale=self.scale,
            positions=torch.arange(span.past_tokens, span.total_tokens) - oldest,
            window=self.layout.tables[table].window,
            soft_cap=of_layer.soft_cap,
            sinks=of_layer.sinks,
        ).to(query.dtype)

    def _stored(
        self, stored: VectorFormat, arena: torch.Tensor, table: int, span: SequenceSpan, new: torch.Tensor
    ) -> torch.Tensor:
        """Write the new vectors [new, kv_heads, dim]; all that they attend to, float64 [tokens, kv_heads, dim]."""
        block_size, dim = self.layout.block_size, new.shape[-1]
        view = BlockView.of(arena, stored, block_size, dim)
        oldest = self.layout.tables[table].first_needed(span.past_tokens)
        tokens = torch.arange(oldest, span.total_tokens)
        numbers = span.needed_blocks(self.layout.tables[table], block_size)
        blocks = torch.tensor(span.block_ids(table, numbers))[tokens // block_size - numbers.start]
        slots = tokens % block_size
        past = span.past_tokens - oldest
        view.write(blocks[past:], slots[past:], encode(stored, new))
        read = decode(stored, view.read(blocks, slots), dim).double()
        if span.new_tokens > 1:
            read[past:] = new.double()
        return read


def attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    scale: float,
    positions: torch.Tensor,
    window: int | None,
    soft_cap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Query i, at position positions[i] of the keys, attends to itself and what is before it: float64.

    query [new, query_heads, dim]; keys, values [tokens, kv_heads, dim]. Returns [new, query_heads, value's dim].
    """
    group = query.shape[1] // keys.shape[1]
    keys, values = (side.double().repeat_interleave(group, dim=1) for side in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", query.double(), keys) * scale
    if soft_cap is not None:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    behind = positions[:, None] - torch.arange(len(keys))
    hidden = behind < 0 if window is None else (behind < 0) | (behind >= window)
    scores = scores.masked_fill(hidden, -math.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.double()[:, None, None].expand(-1, len(query), 1)], dim=-1)
    weights = scores.softmax(-1)[..., : len(keys)]
    return torch.einsum("hqk,khd->qhd", weights, values)
