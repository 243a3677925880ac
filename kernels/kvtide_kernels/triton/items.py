"""What one program of a kernel takes: parts of sequences, as a table's layers see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from kvtide_kernels.attention import SequenceSpan
from kvtide_kernels.triton.shapes import SPLIT_TOKENS
from kvtide_sizing.memory.kv import KvLayout


@dataclass(frozen=True)
class Grid:
    """What a plan needs to know of the kernels: programs a decode item has, those that the device runs at once, and
    the tokens that a program of a prefill takes."""

    heads: int
    programs: int
    prefill_tokens: int


@dataclass(frozen=True)
class Row:
    """A span in one table. Tokens count from where its blocks begin, a multiple of the layout's recent tokens.

    start:          its first row in the batch
    blocks:         those that its new tokens lie in or attend to; any, before the first of these
    recent_blocks:  those of its recent tokens
    first:          the oldest token that the first new one attends to
    recent:         the oldest one that it attends to in BF16, where the layer keeps any
    """

    start: int
    blocks: list[int]
    recent_blocks: list[int]
    first: int
    recent: int
    past: int
    new: int

    @property
    def end(self) -> int:
        """Behind the last new token."""
        return self.past + self.new

    def slots(self, block_size: int) -> list[int]:
        """Where new tokens go: block * block_size + place."""
        return [
            self.blocks[token // block_size] * block_size + token % block_size for token in range(self.past, self.end)
        ]

    def recent_slots(self, layout: KvLayout) -> list[int]:
        """Where a decode's token goes in BF16: block * recent_per_block + place; -1 for those of a chunk."""
        if self.new > 1 or not layout.recent:
            return [-1] * self.new
        number, place = divmod(self.past % layout.recent, layout.recent_per_block)
        return [self.recent_blocks[number] * layout.recent_per_block + place]


def table_rows(spans: Sequence[SequenceSpan], number: int, layout: KvLayout) -> list[Row]:
    """The spans in that one of the layout's tables. Raises ValueError as `SequenceSpan.check` does."""
    table, size = layout.tables[number], layout.block_size
    starts = accumulate((span.new_tokens for span in spans), initial=0)
    rows = []
    for start, span in zip(starts, spans, strict=False):
        span.check(layout)
        needed = span.needed_blocks(table, size)
        before = needed.start % max(1, layout.recent // size)
        origin = (needed.start - before) * size
        first = table.first_needed(span.past_tokens)
        rows.append(
            Row(
                start=start,
                blocks=[0] * before + span.block_ids(number, needed),
                recent_blocks=list(span.tables[number].recent),
                first=first - origin,
                recent=max(first, span.recent_tokens(layout).start) - origin,
                past=span.past_tokens - origin,
                new=span.new_tokens,
            )
        )
    return rows


def split_tokens(reaches: Sequence[int], grid: Grid) -> int | None:
    """How many tokens a decode's item takes, so that all are shared by about as many programs as the device runs at
    once; None for no split.

    reaches: tokens that each sequence attends to. A batch that fills the device is not split, unless its longest
    sequence would run long after the rest.
    """
    if not reaches:
        return None
    chunk = _shared_tokens(reaches, grid)
    filled = len(reaches) * grid.heads >= grid.programs
    return None if max(reaches) <= (2 * chunk if filled else chunk) else chunk


def _shared_tokens(reaches: Sequence[int], grid: Grid) -> int:
    share = -(-sum(reaches) * grid.heads // grid.programs)
    return max(SPLIT_TOKENS, -(-share // SPLIT_TOKENS) * SPLIT_TOKENS)


def most_items(sequences: int, tokens: int, grid: Grid) -> int:
    """Items that so many sequences of at most so many tokens have at most.

    Of chunks a sequence has reach / chunk whole ones, programs / heads over all, and a piece of one at either end.
    """
    return min(grid.programs // grid.heads + 2 * sequences, sequences * (-(-tokens // SPLIT_TOKENS) + 1))


def decode_items(
    rows: Sequence[Row], grid: Grid, *, split: bool | None = None
) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """`TablePlan.decodes`, and `TablePlan.parts` where any is split.

    split: False for one item a sequence; True for parts even where each sequence has one; None for what is fastest
    """
    decodes = [(number, row) for number, row in enumerate(rows) if row.new == 1]
    chunk = None if split is False else split_tokens([row.end - row.first for _, row in decodes], grid)
    items: list[tuple[int, ...]] = []
    parts: list[tuple[int, ...]] = []
    for number, row in decodes:
        inner = () if chunk is None else range(row.first // chunk * chunk + chunk, row.end, chunk)
        borders = [row.first, *inner, row.end]
        parts.append((row.start, len(items), len(borders) - 1))
        items += [(row.start, number, begin, end, row.recent, row.end) for begin, end in pairwise(borders)]
    return items, parts if split or chunk is not None else []


def prefill_items(rows: Sequence[Row], grid: Grid) -> list[tuple[int, ...]]:
    """`TablePlan.prefills`."""
    return [
        (row.start, number, row.past, row.new, first, row.recent)
        for number, row in enumerate(rows)
        if row.new > 1
        # Later tokens see more, and take longer: they go first.
        for first in reversed(range(0, row.new, grid.prefill_tokens))
    ]
