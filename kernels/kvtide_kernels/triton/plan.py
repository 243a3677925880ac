"""A step's plan: what every kernel reads to know which tokens are whose, on the device in one copy."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import torch

from kvtide_kernels.attention import SequenceSpan
from kvtide_kernels.triton.items import Grid, decode_items, prefill_items, table_rows
from kvtide_sizing.memory.kv import KvLayout

# Table rows are padded to as many blocks, and every array of a plan begins at as many int32: 16 bytes.
_ALIGN = 4


@dataclass(frozen=True)
class TablePlan:
    """What the layers of one table need in a step; int32, on the device.

    slots [tokens]            where new tokens go: block * block_size + place; -1 for none
    recent_slots [tokens]     where decodes' go in BF16 too: block * recent_per_block + place; -1 for chunks'
    tables [spans, …]         blocks; tokens below count from where a row's begin, a multiple of layout.recent
    recent_tables [spans, …]  blocks of recent tokens
    decodes [items, 6]        row in the batch, row in the tables, first token, end, the sequence's first recent token,
                              and its end
    parts [sequences, 3]      row in the batch, first item, items; no rows where no decode is split
    prefills [items, 6]       the chunk's first row in the batch, row in the tables, past tokens, new tokens, first of
                              the item, and the past's first recent token
    """

    slots: torch.Tensor
    recent_slots: torch.Tensor
    tables: torch.Tensor
    recent_tables: torch.Tensor
    decodes: torch.Tensor
    parts: torch.Tensor
    prefills: torch.Tensor


@dataclass(frozen=True)
class PlanArray:
    """One of these on the host: rows one after another, of so many columns each, or of none."""

    values: list[int]
    columns: int | None

    @property
    def rows(self) -> int:
        """How many."""
        return len(self.values) // self.width if self.width else 0

    @property
    def width(self) -> int:
        """Numbers in a row."""
        return 1 if self.columns is None else self.columns

    def padded(self, rows: int, fill: int) -> PlanArray:
        """With more rows, all of that number."""
        return PlanArray(self.values + [fill] * (self.width * (rows - self.rows)), self.columns)


Arrays = dict[str, PlanArray]


def table_arrays(
    spans: Sequence[SequenceSpan],
    number: int,
    layout: KvLayout,
    grid: Grid,
    *,
    least_blocks: int = 1,
    split: bool | None = None,
) -> Arrays:
    """The arrays of that one of the layout's tables, by their names in `TablePlan`.

    least_blocks: that a row of the tables has room for; split: as in `decode_items`

    Raises ValueError as `SequenceSpan.check` does.
    """
    rows = table_rows(spans, number, layout)
    width = -(-max(least_blocks, *(len(row.blocks) for row in rows), 0) // _ALIGN) * _ALIGN
    decodes, parts = decode_items(rows, grid, split=split)
    return {
        "slots": PlanArray(_flat(row.slots(layout.block_size) for row in rows), None),
        "recent_slots": PlanArray(_flat(row.recent_slots(layout) for row in rows), None),
        "tables": PlanArray(_flat(row.blocks + [0] * (width - len(row.blocks)) for row in rows), width),
        "recent_tables": PlanArray(_flat(row.recent_blocks for row in rows), layout.recent_blocks),
        "decodes": PlanArray(_flat(decodes), 6),
        "parts": PlanArray(_flat(parts), 3),
        "prefills": PlanArray(_flat(prefill_items(rows, grid)), 6),
    }


def _flat(rows: Iterable[Iterable[int]]) -> list[int]:
    return list(chain.from_iterable(rows))


def to_host(tables: Sequence[Arrays], device: torch.device) -> torch.Tensor:
    """All arrays side by side, int32, from where a copy to the device need not be waited for."""
    flat = array("i")
    for values in (one.values for arrays in tables for one in arrays.values()):
        flat.extend(values)
        flat.extend([0] * (-len(values) % _ALIGN))
    host = torch.frombuffer(flat, dtype=torch.int32) if flat else torch.empty(0, dtype=torch.int32)
    return host.pin_memory() if device.type == "cuda" else host


def plans_in(flat: torch.Tensor, tables: Sequence[Arrays]) -> tuple[TablePlan, ...]:
    """A plan for each table: the arrays' places in what `to_host` gave, or in a copy of it."""
    plans, begin = [], 0
    for arrays in tables:
        views = {}
        for name, one in arrays.items():
            end = begin + len(one.values)
            shape = (one.rows,) if one.columns is None else (one.rows, one.columns)
            views[name] = flat[begin:end].view(shape)
            begin = end + -len(one.values) % _ALIGN
        plans.append(TablePlan(**views))
    return tuple(plans)
