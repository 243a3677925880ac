"""Paged attention on the CPU: planning a step in Python, and running it in C++."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch

from kvtide_kernels.attention import SequenceSpan
from kvtide_kernels.cpu.arenas import LayerArenas
from kvtide_kernels.cpu.library import SPAN_FIELDS, UNIT_FIELDS, Layer, Library, Step, library
from kvtide_sizing.memory.kv import KvLayout, TableLayout

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
        self._arrived = torch.zeros(slots * attention.kv_heads, dtype=torch.int32)

    def run(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """As `AttentionStep.run`, in bfloat16. Raises ValueError for tensors of another dtype or shape."""
        attention = self._attention
        table = self._tables[attention.tables[layer]]
        kv_heads, head_dim = attention.kv_heads, attention.head_dim
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
    """Paged attention in C++ over each layer's arenas.

    scale:    what scores are multiplied with
    softcap:  c, where scores become c · tanh(score / c); 0 for none
    kernels:  the compiled library; the best one for this processor, where none is given

    Raises ValueError where layers differ in heads or block size, or have not the layout's.
    """

    def __init__(
        self,
        layout: KvLayout,
        layers: Sequence[LayerArenas],
        *,
        scale: float,
        softcap: float = 0.0,
        kernels: Library | None = None,
    ) -> None:
        self.layout = layout
        self.library = kernels or library()
        self.kv_heads, self.head_dim = layers[0].kv_heads, layers[0].head_dim
        self.tables = _table_of_layers(layout, len(layers))
        self._layers, self._scale, self._softcap = layers, scale, softcap
        self._structures: dict[tuple[int, int], Layer] = {}
        for index, layer in enumerate(layers):
            if (layer.kv_heads, layer.head_dim, layer.block_size) != (self.kv_heads, self.head_dim, layout.block_size):
                raise ValueError(
                    f"layer {index} has {layer.kv_heads} KV heads of {layer.head_dim} in blocks of {layer.block_size}, "
                    f"but {self.kv_heads} of {self.head_dim} in blocks of {layout.block_size} are needed"
                )

    def structure(self, layer: int, query_heads: int) -> Layer:
        """The layer as the kernels take it. Raises ValueError where the query heads are no multiple of the KV heads."""
        known = self._structures.get((layer, query_heads))
        if known is not None:
            return known
        arenas = self._layers[layer]
        if query_heads < self.kv_heads or query_heads % self.kv_heads:
            raise ValueError(f"{query_heads} query heads are no multiple of {self.kv_heads} KV heads")
        sinks = arenas.sinks
        if sinks is not None and (sinks.dtype != torch.float32 or sinks.shape != (query_heads,)):
            raise ValueError(f"sinks need float32 [{query_heads}], but are {sinks.dtype} {list(sinks.shape)}")
        made = Layer(
            arenas.side(arenas.key, arenas.format.key),
            arenas.side(arenas.value, arenas.format.value),
            self.kv_heads,
            query_heads // self.kv_heads,
            arenas.block_size,
            self.layout.tables[self.tables[layer]].window or 0,
            self._scale,
            self._softcap,
            sinks.data_ptr() if sinks is not None else None,
        )
        self._structures[layer, query_heads] = made
        return made

    def plan(self, spans: Sequence[SequenceSpan]) -> CpuAttentionStep:
        """As `PagedAttention.plan`."""
        for span in spans:
            span.check(self.layout)
        by_window: dict[int | None, tuple[torch.Tensor, int]] = {}
        tables = []
        for index, table in enumerate(self.layout.tables):
            if table.window not in by_window:
                by_window[table.window] = _units(spans, table)
            units, slots = by_window[table.window]
            tables.append(_TableStep(*_spans(spans, index, table, self.layout.block_size), units, slots))
        return CpuAttentionStep(self, tables, sum(span.new_tokens for span in spans))


def _table_of_layers(layout: KvLayout, num_layers: int) -> list[int]:
    tables = {layer: index for index, table in enumerate(layout.tables) for layer in table.layers}
    if sorted(tables) != list(range(num_layers)):
        raise ValueError(f"the layout's tables serve the layers {sorted(tables)}, but there are {num_layers}")
    return [tables[layer] for layer in range(num_layers)]


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
