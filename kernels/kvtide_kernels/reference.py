"""Paged attention as the formula says it: the oracle of every backend. In float64, a token at a time where need be."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch

from kvtide_kernels.attention import SequenceSpan
from kvtide_kernels.block_view import BlockView, RecentView
from kvtide_kernels.codec import decode, encode
from kvtide_kernels.key_basis import KeyBasis
from kvtide_kernels.pool import StoredLayer
from kvtide_sizing.formats import VectorFormat
from kvtide_sizing.memory.kv import KvLayout


class ReferenceAttention:
    """Attention over blocks in any format, for layers of any widths.

    scale:     what scores are multiplied with
    soft_cap:  scores become soft_cap · tanh(score / soft_cap)
    sinks:     of a layer, [query_heads]: a score each that joins the softmax's sum and has no value
    bases:     of a layer: what its keys are stored in

    A chunk's new tokens attend to one another as they came and to the past as it is stored. A span of one new token, a
    decode, attends to that as it is stored too. What is stored of recent tokens is BF16 (`SequenceSpan`).
    """

    def __init__(
        self,
        layout: KvLayout,
        layers: Sequence[StoredLayer],
        *,
        scale: float,
        soft_cap: float | None = None,
        sinks: Mapping[int, torch.Tensor] = MappingProxyType({}),
        bases: Mapping[int, KeyBasis] = MappingProxyType({}),
    ) -> None:
        self.layout, self.layers = layout, layers
        self.scale, self.soft_cap, self.sinks, self.bases = scale, soft_cap, sinks, bases

    def plan(self, spans: Sequence[SequenceSpan]) -> ReferenceStep:
        """As `PagedAttention.plan`."""
        for span in spans:
            span.check(self.layout)
        return ReferenceStep(self, spans)


@dataclass(frozen=True)
class ReferenceStep:
    """A planned step."""

    attention: ReferenceAttention
    spans: Sequence[SequenceSpan]

    def run(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """As `AttentionStep.run`; value may have another width than key, which is the result's then."""
        basis = self.attention.bases.get(layer)
        if basis is not None:
            query, key = basis.queries(query), basis.keys(key)
        attended, start = [], 0
        for span in self.spans:
            own = slice(start, start + span.new_tokens)
            attended.append(self._attend(layer, span, query[own], key[own], value[own]))
            start = own.stop
        return torch.cat(attended)

    def _attend(
        self, layer: int, span: SequenceSpan, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        attention = self.attention
        stored = attention.layers[layer]
        sides = [
            _Side(attention.layout, stored, packed, arena, span, new)
            for packed, arena, new in (
                (stored.format.key, stored.key, key),
                (stored.format.value, stored.value, value),
            )
        ]
        keys, values = (side.attended() for side in sides)
        oldest = span.total_tokens - len(keys)
        return attend(
            query,
            keys,
            values,
            scale=attention.scale,
            positions=torch.arange(span.past_tokens, span.total_tokens) - oldest,
            window=attention.layout.tables[stored.table].window,
            soft_cap=attention.soft_cap,
            sinks=attention.sinks.get(layer),
        ).to(query.dtype)


@dataclass(frozen=True)
class _Side:
    """A span's keys or values in one layer: new [new_tokens, kv_heads, dim], and what is stored of it in an arena."""

    layout: KvLayout
    layer: StoredLayer
    stored: VectorFormat
    arena: torch.Tensor
    span: SequenceSpan
    new: torch.Tensor

    def attended(self) -> torch.Tensor:
        """Write the new vectors; all that they attend to, float64 [tokens, kv_heads, dim], up to the last new one."""
        span, layout, block_size, dim = self.span, self.layout, self.layout.block_size, self.new.shape[-1]
        view = BlockView.of(self.arena, self.stored, block_size, dim)
        table = layout.tables[self.layer.table]
        oldest = table.first_needed(span.past_tokens)
        tokens = torch.arange(oldest, span.total_tokens)
        numbers = span.needed_blocks(table, block_size)
        blocks = torch.tensor(span.block_ids(self.layer.table, numbers))[tokens // block_size - numbers.start]
        slots = tokens % block_size
        past = span.past_tokens - oldest
        view.write(blocks[past:], slots[past:], encode(self.stored, self.new))
        read = decode(self.stored, view.read(blocks, slots), dim).double()
        if layout.recent_of(self.layer.format):
            new = range(span.past_tokens, span.total_tokens)
            if span.new_tokens == 1:
                self._write_recent(new)
            recent = range(max(oldest, span.recent_tokens(layout).start), span.recent_tokens(layout).stop)
            read[recent.start - oldest : recent.stop - oldest] = self._read_recent(recent)
            if span.new_tokens > 1:
                self._write_recent(new[-layout.recent :])
        if span.new_tokens > 1:
            read[past:] = self.new.double()
        return read

    def _recent(self, tokens: range) -> tuple[RecentView, torch.Tensor, torch.Tensor]:
        view = RecentView.of(self.arena, self.layout, self.new.shape[-1])
        places = torch.tensor(tokens, dtype=torch.int64) % self.layout.recent
        blocks = torch.tensor(self.span.tables[self.layer.table].recent, dtype=torch.int64)
        return view, blocks[places // self.layout.recent_per_block], places % self.layout.recent_per_block

    def _read_recent(self, tokens: range) -> torch.Tensor:
        view, blocks, slots = self._recent(tokens)
        return view.vectors[blocks, :, slots].double()

    def _write_recent(self, tokens: range) -> None:
        view, blocks, slots = self._recent(tokens)
        view.vectors[blocks, :, slots] = self.new[tokens.start - self.span.past_tokens :][: len(tokens)].bfloat16()


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
