"""How blocks and block tables cover a model's layers, and how many blocks a sequence takes.

A block is block_size tokens of some layers. Where all layers attend to everything, those are all layers, and a
sequence has one block table. Where some have a window, layers of one window share a table, so that a table gives back
its blocks behind the window; all tables' blocks are of one size and come from one pool:

    layers   w w f w w f          tables   full: (2, 5)   window: (0, 3), (1, 4)      layers_per_table 2
    tokens   0 ... 63 | 64 ... 127 | 128 ... 191     full: 3 blocks     window 100: 2 blocks each, at 191
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kvtide_sizing.formats import RECENT_PARTS, RECENT_TOKENS, LayerFormat
from kvtide_sizing.shape import ModelShape


@dataclass(frozen=True)
class TableLayout:
    """The layers that one of a sequence's block tables serves; window as in `LayerShape`."""

    layers: tuple[int, ...]
    window: int | None

    def first_needed(self, num_tokens: int) -> int:
        """The oldest token that the next one, at position num_tokens, still attends to."""
        return 0 if self.window is None else max(0, num_tokens + 1 - self.window)

    def sequence_blocks(self, num_tokens: int, block_size: int) -> int:
        """Blocks that a sequence of so many tokens holds at most in this table.

        A window of w tokens lies in at most ceil((w - 1) / block_size) + 1 blocks, wherever it begins.
        """
        whole = -(-num_tokens // block_size)
        return whole if self.window is None else min(whole, -(-(self.window - 1) // block_size) + 1)


@dataclass(frozen=True)
class KvLayout:
    """The pool's unit and who uses it.

    block_size:  tokens of a block
    block_bytes: of one block in one table; the widest, where tables differ
    step_tokens: tokens that a step adds at most: a window's tables hold these too until the step has ended
    recent:      tokens that each sequence keeps in BF16 too, in blocks of its own in every table: token t at place
                 t % recent, of which a block takes `recent_per_block` one after another
    """

    block_size: int
    block_bytes: int
    tables: tuple[TableLayout, ...]
    step_tokens: int
    recent: int = 0

    @property
    def recent_per_block(self) -> int:
        """Recent tokens in a block: what fits a head's bytes there whatever its format."""
        return self.block_size // RECENT_PARTS

    @property
    def recent_blocks(self) -> int:
        """Blocks that recent tokens take in each table of a sequence."""
        return -(-self.recent // self.recent_per_block) if self.recent else 0

    def recent_of(self, stored: LayerFormat) -> int:
        """Recent tokens that a layer of this format keeps: all of them, or none."""
        return self.recent if stored.keeps_recent else 0

    @property
    def windowed_tables(self) -> int:
        """Tables that give blocks back."""
        return sum(table.window is not None for table in self.tables)

    @property
    def step_blocks(self) -> int:
        """Blocks that a step may need beyond `sequence_blocks`, over all sequences: new tokens of windowed layers."""
        return self.windowed_tables * -(-(self.step_tokens - 1) // self.block_size)

    def sequence_blocks(self, num_tokens: int) -> int:
        """Blocks that a sequence of so many tokens holds at most, over all its tables, recent ones included."""
        own = sum(table.sequence_blocks(num_tokens, self.block_size) for table in self.tables)
        return own + (len(self.tables) * self.recent_blocks if num_tokens else 0)

    def sequences(self, num_blocks: int, num_tokens: int) -> int:
        """How many sequences of so many tokens so many blocks hold."""
        return max(0, num_blocks - self.step_blocks) // self.sequence_blocks(num_tokens)

    def expected_sequences(self, num_blocks: int, mean_tokens: int) -> int:
        """How many sequences of this mean length so many blocks hold."""
        half_tokens = max(0, num_blocks - self.step_blocks) * 2 * self.block_size
        return half_tokens // self.expected_half_tokens(mean_tokens)

    def expected_half_tokens(self, mean_tokens: int) -> int:
        """What a sequence of this mean length takes of the pool, half a block for its last ones included; over all
        tables, in half tokens, so that halves of blocks are whole."""
        size = self.block_size
        whole = max(2 * mean_tokens + size, -(-mean_tokens // size) * 2 * size)
        own = sum(
            whole if table.window is None else min(whole, 2 * size * table.sequence_blocks(mean_tokens, size))
            for table in self.tables
        )
        return own + 2 * size * len(self.tables) * self.recent_blocks

    def required_blocks(self, sequences: int, num_tokens: int) -> int:
        """The fewest blocks that hold so many: the inverse of `sequences`."""
        return sequences * self.sequence_blocks(num_tokens) + self.step_blocks


def kv_layout(shape: ModelShape, formats: Sequence[LayerFormat], block_size: int, step_tokens: int) -> KvLayout:
    """The layout that wastes least, and of those the one with the fewest tables; formats are the layers' own."""
    widths = [stored.side_bytes(layer) for stored, layer in zip(formats, shape.layers, strict=True)]
    # Wide ones first in every table: a slot is as wide as the widest layer that has it.
    by_window = {
        window: sorted(layers, key=lambda index: widths[index], reverse=True)
        for window, layers in shape.layers_by_window.items()
    }
    if len(by_window) == 1:
        sizes = [shape.num_layers]
    else:
        most = math.gcd(*map(len, by_window.values()))
        # Layers of one width waste nothing however they are cut.
        sizes = [most] if len(set(widths)) == 1 else [size for size in range(most, 0, -1) if most % size == 0]
    layouts = [_tables(by_window, size) for size in sizes]
    tables = min(layouts, key=lambda tables: len(tables) * _block_width(tables, widths))
    recent = RECENT_TOKENS if any(stored.keeps_recent for stored in formats) else 0
    return KvLayout(block_size, block_size * _block_width(tables, widths), tables, step_tokens, recent)


def _tables(by_window: dict[int | None, list[int]], size: int) -> tuple[TableLayout, ...]:
    """Tables of so many layers. Those of a window are dealt out in turn: each table has its share of the wide ones."""
    return tuple(
        TableLayout(tuple(layers[start :: len(layers) // size]), window)
        for window, layers in by_window.items()
        for start in range(len(layers) // size)
    )


def _block_width(tables: Sequence[TableLayout], widths: Sequence[tuple[int, int]]) -> int:
    """Bytes of one token in a block: the slots' sides, each as wide as in the widest layer that has the slot."""
    return sum(
        max(widths[layer][side] for layer in slot)
        for slot in zip(*(table.layers for table in tables), strict=True)
        for side in (0, 1)
    )
