"""Paged attention on the CPU: planning a step in Python, and running it in C++."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from types import MappingProxyType

import torch

from kvtide_kernels.attention import SequenceSpan
from kvtide_kernels.cpu.arenas import check_pool, side_of
from kvtide_kernels.cpu.library import SPAN_FIELDS, UNIT_FIELDS, Layer, Library, Step, library
from kvtide_kernels.key_basis import KeyBasis
from kvtide_kernels.pool import KVPool
from kvtide_sizing.memory.kv import TableLayout

# Tokens that one piece of a decode attends to: in sequences of up to LONG_TOKENS, and in longer ones. Pieces begin at
# multiples of it, so that they hang on the own sequence alone. Small enough that two cores share a sequence of a
# thousand tokens evenly, large enough that what each piece costs beside its tokens does not show.
SPLIT_TOKENS, LONG_SPLIT_TOKENS, LONG_TOKENS = 512, 2048, 4096

# New tokens of a chunk that read the context together.
CHUNK_TOKENS = 32


@dataclass(frozen=True)
class _TableStep:
    """What the layers of one table share: arrays of `Span` and `Unit`, and the block ids that spans point to."""

    spans: torch.Tensor
    blocks: torch.Tensor
    units: torch.Tensor
    slots: int


class CpuAttentionStep:
    """A planned step.

    Between `plan` and the step's end it has the spans' block ids in int32, and from the first `run` on
    pieces · query_heads · (head_dim + 2) in float32, where decodes of more than SPLIT_TOKENS are cut into pieces.
    `run` takes its result. Each thread keeps under 1 MiB of its own for ever.
    """

    def __init__(self, attention: CpuAttention, tables: list[_TableStep], tokens: int) -> None:
        self._attention = attention
        self._tables = tables
        self._tokens = tokens
        slots = max(table.slots for table in tables)
        self._partial = torch.empty(0)
        self._arrived = torch.zeros(slots * attention.pool.kv_heads, dtype=torch.int32)

    def run(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """As `AttentionStep.run`, in bfloat16. Raises ValueError for tensors of another dtype or shape."""
        attention = self._attention
        pool = attention.pool
        table = self._tables[pool.layers[layer].table]
        kv_heads, head_dim = pool.kv_heads, pool.head_dim
        query_heads = query.shape[1]
        if (
            not (query.dtype == key.dtype == value.dtype == torch.bfloat16)
            or not key.shape == value.shape == (self._tokens, kv_heads, head_dim)
            or query.shape != (self._tokens, query_heads, head_dim)
        ):
            raise ValueError(
                f"the step has {self._tokens} tokens in torch.bfloat16 and {kv_heads} KV heads of {head_dim}; "
                f"query, key and value are {', '.join(f'{x.dtype} {list(x.shape)}' for x in (query, key, value))}"
            )
        basis = attention.bases.get(layer)
        if basis is not None:
            query, key = basis.queries(query), basis.keys(key)
        query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
        needed = len(self._arrived) // kv_heads * query_heads * (head_dim + 2)
        if self._partial.numel() < needed:
            self._partial = torch.empty(needed)
        out = torch.empty_like(query)
        step = Step(
            ctypes.pointer(attention.structure(layer, query_heads)),
            table.spans.data_ptr(),
            table.units.data_ptr(),
            len(table.units),
            query.data_ptr(),
            key.data_ptr(),
            value.data_ptr(),
            out.data_ptr(),
            self._partial.data_ptr(),
            self._arrived.data_ptr(),
        )
        attention.library.run(step, torch.get_num_threads())
        return out


class CpuAttention:
    """Paged attention in C++ over a pool.

    scale:     what scores are multiplied with
    soft_cap:  scores become soft_cap · tanh(score / soft_cap)
    sinks:     of a layer, float32 [query_heads]: a score each that joins the softmax's sum and has no value
    bases:     of a layer: what its keys are stored in
    kernels:   the compiled library; the best one for this processor, where none is given

    Raises ValueError for a pool that the kernels do not serve.
    """

    def __init__(
        self,
        pool: KVPool,
        *,
        scale: float,
        soft_cap: float | None = None,
        sinks: Mapping[int, torch.Tensor] = MappingProxyType({}),
        bases: Mapping[int, KeyBasis] = MappingProxyType({}),
        kernels: Library | None = None,
    ) -> None:
        check_pool(pool)
        self.pool, self.sinks, self.bases = pool, sinks, bases
        self.library = kernels or library()
        self._scale, self._soft_cap = scale, soft_cap or 0.0
        self._structures: dict[tuple[int, int], Layer] = {}

    def structure(self, layer: int, query_heads: int) -> Layer:
        """The layer as the kernels take it. Raises ValueError where the query heads are no multiple of the KV heads."""
        known = self._structures.get((layer, query_heads))
        if known is not None:
            return known
        pool, stored = self.pool, self.pool.layers[layer]
        if query_heads < pool.kv_heads or query_heads % pool.kv_heads:
            raise ValueError(f"{query_heads} query heads are no multiple of {pool.kv_heads} KV heads")
        sinks = self.sinks.get(layer)
        if sinks is not None and (sinks.dtype != torch.float32 or sinks.shape != (query_heads,)):
            raise ValueError(f"sinks need float32 [{query_heads}], but are {sinks.dtype} {list(sinks.shape)}")
        made = Layer(
            side_of(stored.key, stored.format.key, pool.head_dim),
            side_of(stored.value, stored.format.value, pool.head_dim),
            pool.kv_heads,
            query_heads // pool.kv_heads,
            pool.layout.block_size,
            pool.layout.tables[stored.table].window or 0,
            self._scale,
            self._soft_cap,
            sinks.data_ptr() if sinks is not None else None,
        )
        self._structures[layer, query_heads] = made
        return made

    def plan(self, spans: Sequence[SequenceSpan]) -> CpuAttentionStep:
        """As `PagedAttention.plan`."""
        for span in spans:
            span.check(self.pool.layout)
        by_window: dict[int | None, tuple[torch.Tensor, int]] = {}
        tables = []
        for index, table in enumerate(self.pool.layout.tables):
            if table.window not in by_window:
                by_window[table.window] = _units(spans, table)
            units, slots = by_window[table.window]
            tables.append(_TableStep(*_spans(spans, index, table, self.pool.layout.block_size), units, slots))
        return CpuAttentionStep(self, tables, sum(span.new_tokens for span in spans))


def _spans(
    spans: Sequence[SequenceSpan], index: int, table: TableLayout, block_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The array of `Span` for one table, and the block ids behind its pointers."""
    needed = [span.needed_blocks(table, block_size) for span in spans]
    ids = [block for span, numbers in zip(spans, needed, strict=True) for block in span.block_ids(index, numbers)]
    blocks = torch.tensor(ids, dtype=torch.int32)
    starts = accumulate((len(numbers) for numbers in needed), initial=0)
    rows = accumulate((span.new_tokens for span in spans), initial=0)
    array = torch.tensor(
        [
            (blocks.data_ptr() + 4 * start, numbers.start, span.past_tokens, span.new_tokens, row)
            for span, numbers, start, row in zip(spans, needed, starts, rows, strict=False)
        ],
        dtype=torch.int64,
    )
    assert array.shape[1] == len(SPAN_FIELDS)
    return array, blocks


def _units(spans: Sequence[SequenceSpan], table: TableLayout) -> tuple[torch.Tensor, int]:
    """The array of `Unit` for the tables of one window, the longest work first; and the slots of partial results."""
    units: list[tuple[int, ...]] = []
    slots = 0
    for index, span in enumerate(spans):
        low = table.first_needed(span.past_tokens)
        if span.new_tokens == 1:
            high = span.total_tokens
            split = SPLIT_TOKENS if high - low <= LONG_TOKENS else LONG_SPLIT_TOKENS
            bounds = [low, *range((low // split + 1) * split, high, split), high]
            parts = len(bounds) - 1
            first_slot, slots = (slots, slots + parts) if parts > 1 else (0, slots)
            units += (
                (index, 0, 1, start, end, part, parts, first_slot) for part, (start, end) in enumerate(pairwise(bounds))
            )
        else:
            for begin in range(0, span.new_tokens, CHUNK_TOKENS):
                count = min(CHUNK_TOKENS, span.new_tokens - begin)
                first = min(table.first_needed(span.past_tokens + begin), span.past_tokens)
                units.append((index, begin, count, first, span.past_tokens, 0, 1, 0))
    # Seen by no result: threads take units in turn, and none should be left alone with a long one at the end.
    units.sort(key=lambda unit: (unit[4] - unit[3] + unit[1]) * unit[2], reverse=True)
    array = torch.tensor(units, dtype=torch.int64)
    assert array.shape[1] == len(UNIT_FIELDS)
    return array, slots
