"""A step's plan: what every kernel reads to know which tokens are whose, on the device in one copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch

from kvtide_kernels.attention import SequenceSpan
from kvtide_kernels.triton.shapes import SPLIT_TOKENS
from kvtide_sizing.memory.kv import KvLayout, TableLayout

# Table rows are padded to as many blocks, and every array of a plan begins at as many int32: 16 bytes.
_ALIGN = 4


@dataclass(frozen=True)
class TablePlan:
    """What the layers of one table need in a step; int32, on the device.

    slots [tokens]       where new tokens go: block * block_size + place
    tables [spans, …]    the blocks that a span's new tokens lie in or attend to; tokens below count from there
    decodes [items, 4]   row in the batch, row in tables, first token, end
    parts [sequences, 3] row in the batch, first item, items; None where no decode is split
    prefills [items, 5]  the chunk's first row in the batch, row in tables, past tokens, new tokens, first of the item
    """

    slots: torch.Tensor
    tables: torch.Tensor
    decodes: torch.Tensor
    parts: torch.Tensor | None
    prefills: torch.Tensor


def split_tokens(reaches: Sequence[int], heads: int, programs: int) -> int | None:
    """How many tokens a decode's item takes, so that all are shared by about so many programs; None for no split.

    reaches: tokens that each sequence attends to; heads: programs for each item; programs: what the device runs at
    once. A batch that fills the device is not split, unless its longest sequence would run long after the rest.
    """
    if not reaches:
        return None
    share = sum(reaches) * heads // programs
    chunk = max(SPLIT_TOKENS, -(-share // SPLIT_TOKENS) * SPLIT_TOKENS)
    filled = len(reaches) * heads >= programs
    return None if max(reaches) <= (2 * chunk if filled else chunk) else chunk


class _Packer:
    """Arrays side by side in one host buffer, and their views in its copy on the device."""

    def __init__(self) -> None:
        self._arrays: list[torch.Tensor] = []
        self._length = 0

    def add(self, array: torch.Tensor) -> tuple[int, torch.Size]:
        """Take an array; what comes back finds it in the copy."""
        place = (self._length, array.shape)
        padding = -array.numel() % _ALIGN
        self._arrays += [array.reshape(-1).to(torch.int32), torch.zeros(padding, dtype=torch.int32)]
        self._length += array.numel() + padding
        return place

    def copy_to(self, device: torch.device) -> torch.Tensor:
        """One copy of everything, that the host does not wait for."""
        host = torch.cat(self._arrays)
        return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host.to(device)


@dataclass(frozen=True)
class Grid:
    """What a plan needs to know of the kernels: programs a decode item has, those that the device runs at once, and
    the tokens that a program of a prefill takes."""

    heads: int
    programs: int
    prefill_tokens: int


def plan_tables(
    spans: Sequence[SequenceSpan], layout: KvLayout, grid: Grid, device: torch.device
) -> tuple[TablePlan, ...]:
    """A plan for each of the layout's tables. Raises ValueError as `SequenceSpan.check` does."""
    for span in spans:
        span.check(layout)
    packer = _Packer()
    places = [_table_arrays(spans, number, layout, grid) for number in range(len(layout.tables))]
    found = [[None if array is None else packer.add(array) for array in arrays] for arrays in places]
    flat = packer.copy_to(device)
    plans = []
    for row in found:
        views = [None if one is None else flat[one[0] : one[0] + one[1].numel()].view(one[1]) for one in row]
        slots, tables, decodes, parts, prefills = views
        assert slots is not None
        assert tables is not None
        assert decodes is not None
        assert prefills is not None
        plans.append(TablePlan(slots, tables, decodes, parts, prefills))
    return tuple(plans)


def _table_arrays(
    spans: Sequence[SequenceSpan], number: int, layout: KvLayout, grid: Grid
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor]:
    table, size = layout.tables[number], layout.block_size
    needed = [span.needed_blocks(table, size) for span in spans]
    blocks = [torch.tensor(span.block_ids(number, own)) for span, own in zip(spans, needed, strict=True)]
    width = max(-(-max(map(len, needed)) // _ALIGN), 1) * _ALIGN
    padded_tables = torch.stack([torch.nn.functional.pad(one, (0, width - len(one))) for one in blocks])
    slots = []
    for span, own, ids in zip(spans, needed, blocks, strict=True):
        position = torch.arange(span.past_tokens, span.total_tokens)
        slots.append(ids[position // size - own.start] * size + position % size)
    decodes, parts = _decode_items(spans, needed, table, size, grid)
    prefills = _prefill_items(spans, needed, size, grid)
    return torch.cat(slots), padded_tables, decodes, parts, prefills


def _starts(spans: Sequence[SequenceSpan]) -> list[int]:
    return list(accumulate((span.new_tokens for span in spans), initial=0))[:-1]


def _decode_items(
    spans: Sequence[SequenceSpan], needed: Sequence[range], table: TableLayout, size: int, grid: Grid
) -> tuple[torch.Tensor, torch.Tensor | None]:
    reaches = []
    for row, (start, span, own) in enumerate(zip(_starts(spans), spans, needed, strict=True)):
        if span.new_tokens == 1:
            origin = own.start * size
            reaches.append((start, row, table.first_needed(span.past_tokens) - origin, span.total_tokens - origin))
    chunk = split_tokens([end - first for _, _, first, end in reaches], grid.heads, grid.programs)
    if chunk is None:
        return torch.tensor(reaches, dtype=torch.int32).view(-1, 4), None
    items: list[tuple[int, int, int, int]] = []
    parts: list[tuple[int, int, int]] = []
    for start, row, first, end in reaches:
        borders = [first, *range(first // chunk * chunk + chunk, end, chunk), end]
        parts.append((start, len(items), len(borders) - 1))
        items += [(start, row, begin, stop) for begin, stop in pairwise(borders)]
    return torch.tensor(items, dtype=torch.int32), torch.tensor(parts, dtype=torch.int32)


def _prefill_items(spans: Sequence[SequenceSpan], needed: Sequence[range], size: int, grid: Grid) -> torch.Tensor:
    items = [
        (start, row, span.past_tokens - own.start * size, span.new_tokens, first)
        for row, (start, span, own) in enumerate(zip(_starts(spans), spans, needed, strict=True))
        if span.new_tokens > 1
        # Later tokens see more, and take longer: they go first.
        for first in reversed(range(0, span.new_tokens, grid.prefill_tokens))
    ]
    return torch.tensor(items, dtype=torch.int32).view(-1, 5)
