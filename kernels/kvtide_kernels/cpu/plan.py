"""A step as the kernels take it: the spans with their block ids, and the pieces of work that threads take in turn."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import torch

from kvtide_kernels.attention import SequenceSpan
from kvtide_kernels.cpu.library import SPAN_FIELDS, UNIT_FIELDS
from kvtide_sizing.memory.activations import CHUNK_TOKENS, LONG_SPLIT_TOKENS, LONG_TOKENS, SPLIT_TOKENS
from kvtide_sizing.memory.kv import KvLayout, TableLayout


@dataclass(frozen=True)
class TablePlan:
    """What the layers of one table share.

    spans, units:  int64, arrays of `Span` and `Unit` of src/layout.h
    ids:           int32, the block ids that spans point to
    slots:         of partial results and counters
    """

    spans: torch.Tensor
    units: torch.Tensor
    ids: torch.Tensor
    slots: int


def plan_tables(spans: Sequence[SequenceSpan], layout: KvLayout) -> list[TablePlan]:
    """A plan for each table of the layout. Spans are checked already."""
    by_window: dict[int | None, tuple[torch.Tensor, int]] = {}
    plans = []
    for index, table in enumerate(layout.tables):
        if table.window not in by_window:
            by_window[table.window] = _units(spans, table)
        units, slots = by_window[table.window]
        filled, ids = _spans(spans, index, table, layout)
        plans.append(TablePlan(filled, units, ids, slots))
    return plans


def _spans(
    spans: Sequence[SequenceSpan], index: int, table: TableLayout, layout: KvLayout
) -> tuple[torch.Tensor, torch.Tensor]:
    """The array of `Span` for one table, and the ids behind its pointers: blocks, then recent blocks, of each span."""
    # Flat arrays: torch takes many times as long to read lists of tuples.
    ids, fields, row = array("i"), array("q"), 0
    for span in spans:
        needed = span.needed_blocks(table, layout.block_size)
        blocks = len(ids)
        ids.extend(span.block_ids(index, needed))
        recent = len(ids)
        ids.extend(span.tables[index].recent)
        kept = span.recent_tokens(layout).start
        fields.extend((blocks, recent, needed.start, kept, span.past_tokens, span.new_tokens, row))
        row += span.new_tokens
    held = torch.frombuffer(ids, dtype=torch.int32)
    filled = torch.frombuffer(fields, dtype=torch.int64).view(-1, len(SPAN_FIELDS))
    # From places among the ids to their addresses.
    filled[:, :2] = filled[:, :2] * held.itemsize + held.data_ptr()
    return filled, held


def _units(spans: Sequence[SequenceSpan], table: TableLayout) -> tuple[torch.Tensor, int]:
    """The array of `Unit` for the tables of one window, the longest work first; and the slots that they need."""
    units: list[tuple[int, ...]] = []
    slots = 0
    for index, span in enumerate(spans):
        if span.new_tokens == 1:
            pieces = [(0, 1, low, high) for low, high in pairwise(_bounds(span, table))]
        else:
            pieces = [
                (begin, min(CHUNK_TOKENS, span.new_tokens - begin), *_past_of(span, begin, table))
                for begin in range(0, span.new_tokens, CHUNK_TOKENS)
            ]
        parts = len(pieces)
        for part, (begin, count, low, high) in enumerate(pieces):
            units.append((index, begin, count, low, high, part, parts, slots))
        if parts > 1:
            slots += parts + 1 if span.new_tokens == 1 else 1
    # Seen by no result: threads take units in turn, and none should be left alone with a long one at the end.
    units.sort(key=lambda unit: (unit[4] - unit[3] + unit[1]) * unit[2], reverse=True)
    fields = array("q", chain.from_iterable(units))
    return torch.frombuffer(fields, dtype=torch.int64).view(-1, len(UNIT_FIELDS)), slots


def _bounds(span: SequenceSpan, table: TableLayout) -> list[int]:
    """Where the parts of a decode begin, and where the last one ends."""
    low, high = table.first_needed(span.past_tokens), span.total_tokens
    split = SPLIT_TOKENS if high - low <= LONG_TOKENS else LONG_SPLIT_TOKENS
    return [low, *range((low // split + 1) * split, high, split), high]


def _past_of(span: SequenceSpan, begin: int, table: TableLayout) -> tuple[int, int]:
    """The past that the chunk's tokens from `begin` on see some of."""
    return min(table.first_needed(span.past_tokens + begin), span.past_tokens), span.past_tokens
