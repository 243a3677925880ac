"""The block manager against a memory that remembers who wrote what."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from kvtide_sizing.memory.kv import KvLayout
from kvtide_worker.engine.block_manager import BlockManager, BlockTable, SequenceBlocks
from tests.worker.engine.layouts import layout_of, layouts

NUM_BLOCKS = 30


@dataclass(eq=False)
class Traced:
    """A sequence; writers[t] is who wrote its token t, itself or the one it was forked from.

    recent_from: how many of its tokens are the other one's
    """

    blocks: SequenceBlocks
    admitted: int
    writers: list[int] = field(default_factory=list)
    recent_from: int = 0


class BlockManagerMachine(RuleBasedStateMachine):
    """Random sequences that come, run steps, fork and go. `memory` is what a pool would hold."""

    sequences = Bundle("sequences")

    @initialize(layout=layouts)
    def start(self, layout: KvLayout) -> None:
        self.layout = layout
        self.blocks = BlockManager(layout, NUM_BLOCKS)
        self.alive: list[Traced] = []
        self.forked: set[int] = set()
        self.memory: dict[tuple[int, int], tuple[int, int, int]] = {}

    @rule(target=sequences, tokens=st.integers(1, 60), kept=st.integers(0, 5))
    def admit(self, tokens: int, kept: int) -> object:
        sequence, free = SequenceBlocks(), self.blocks.free_blocks
        if not self.blocks.admit(sequence, tokens, kept):
            assert self.layout.sequence_blocks(tokens) + kept > free
            assert sequence == SequenceBlocks()
            return multiple()
        assert sequence.num_blocks == free - self.blocks.free_blocks == self.layout.sequence_blocks(tokens)
        self.alive.append(Traced(sequence, tokens))
        return self.alive[-1]

    @rule(sequence=sequences, new_tokens=st.integers(1, 16))
    def step(self, sequence: Traced, new_tokens: int) -> None:
        held = [(table.first, list(table.blocks)) for table in sequence.blocks.tables]
        past, free = sequence.blocks.num_tokens, self.blocks.free_blocks
        if not self.blocks.reserve(sequence.blocks, past + new_tokens):
            assert free < self.most_blocks(sequence, new_tokens) - sequence.blocks.num_blocks
            assert held == [(table.first, list(table.blocks)) for table in sequence.blocks.tables]
            return
        assert sequence.blocks.num_blocks <= self.most_blocks(sequence, new_tokens)
        sequence.writers += [id(sequence)] * new_tokens
        for token in range(past, past + new_tokens):
            for index, table in enumerate(sequence.blocks.tables):
                place = table.blocks[token // self.layout.block_size - table.first], token % self.layout.block_size
                self.memory[place] = (id(sequence), index, token)
        self.blocks.advance(sequence.blocks, new_tokens)

    def most_blocks(self, sequence: Traced, new_tokens: int) -> int:
        """What a sequence may hold in a step, of which each windowed table has its share."""
        most = max(sequence.admitted, len(sequence.writers) + new_tokens)
        share = self.layout.windowed_tables * -(-(new_tokens - 1) // self.layout.block_size)
        return self.layout.sequence_blocks(most) + share

    @rule(target=sequences, sequence=sequences)
    def fork(self, sequence: Traced) -> object:
        full = sequence.blocks.num_tokens // self.layout.block_size * self.layout.block_size
        free, recent_blocks = self.blocks.free_blocks, len(self.layout.tables) * self.layout.recent_blocks
        try:
            child = self.blocks.fork(sequence.blocks)
        except ValueError:
            # Only a window can have left something, and only behind a partly filled block.
            assert self.layout.windowed_tables
            assert full < sequence.blocks.num_tokens
            return multiple()
        if child is None:
            assert recent_blocks > free == self.blocks.free_blocks
            return multiple()
        assert self.blocks.free_blocks == free - recent_blocks
        self.forked.update(block for table in child.tables for block in table.blocks)
        self.alive.append(Traced(child, 0, sequence.writers[:full], recent_from=full))
        return self.alive[-1]

    @rule(sequence=consumes(sequences))
    def release(self, sequence: Traced) -> None:
        self.blocks.release(sequence.blocks)
        assert sequence.blocks == SequenceBlocks()
        self.alive = [other for other in self.alive if other is not sequence]

    @invariant()
    def conserves_blocks(self) -> None:
        tables = [table for one in self.alive for table in one.blocks.tables]
        held = Counter(block for table in tables for block in [*table.blocks, *table.recent])
        assert self.blocks.live_blocks == len(held)
        assert self.blocks.free_blocks + self.blocks.live_blocks + self.blocks.cached_blocks == NUM_BLOCKS
        # Two tables hold the same block only where one was forked from the other.
        assert {block for block, holders in held.items() if holders > 1} <= self.forked

    @invariant()
    def nobody_holds_more_than_the_layout_says(self) -> None:
        for one in self.alive:
            # One that was forked off before its first block was full has blocks for recent tokens all the same.
            most = self.layout.sequence_blocks(max(one.admitted, len(one.writers), 1))
            assert one.blocks.num_blocks <= most

    @invariant()
    def recent_blocks_are_nobody_elses(self) -> None:
        for one in self.alive:
            assert one.blocks.recent_from == one.recent_from
            assert all(len(table.recent) == self.layout.recent_blocks for table in one.blocks.tables)
        tables = [table for one in self.alive for table in one.blocks.tables]
        recent = Counter(block for table in tables for block in table.recent)
        assert all(holders == 1 for holders in recent.values())
        assert not recent.keys() & {block for table in tables for block in table.blocks}

    @invariant()
    def what_is_attended_to_is_still_there(self) -> None:
        size = self.layout.block_size
        for one in self.alive:
            past = len(one.writers)
            assert one.blocks.num_tokens == past
            for index, (table, of_layers) in enumerate(zip(one.blocks.tables, self.layout.tables, strict=True)):
                window = past + 1 if of_layers.window is None else of_layers.window
                for token in range(max(0, past + 1 - window), past):
                    place = table.blocks[token // size - table.first], token % size
                    assert self.memory[place] == (one.writers[token], index, token)

    @invariant()
    def counts_written_tokens_once(self) -> None:
        size = self.layout.block_size
        written = {
            (table.blocks[token // size - table.first], token % size)
            for one in self.alive
            for table in one.blocks.tables
            for token in range(table.first * size, one.blocks.num_tokens)
        }
        tables = len(self.layout.tables)
        assert self.blocks.live_tokens == -(-len(written) // tables)
        assert self.blocks.live_tokens * tables <= NUM_BLOCKS * size + tables - 1


TestBlockManager = BlockManagerMachine.TestCase
TestBlockManager.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


def admitted(blocks: BlockManager, num_tokens: int) -> SequenceBlocks:
    sequence = SequenceBlocks()
    assert blocks.admit(sequence, num_tokens, 0)
    return sequence


def test_all_or_nothing() -> None:
    blocks = BlockManager(layout_of([None], block_size=16), num_blocks=3)
    first, second = admitted(blocks, 17), SequenceBlocks()
    assert not blocks.admit(second, 17, 0)
    assert not blocks.admit(second, 16, 1)
    assert (blocks.free_blocks, second) == (1, SequenceBlocks())
    assert not blocks.reserve(first, 49)
    assert blocks.admit(second, 16, 0)


def test_a_window_gives_back_what_it_left() -> None:
    """Window 6 in blocks of 4: the token at 13, which comes next, sees 8 to 13."""
    blocks = BlockManager(layout_of([None, 6]), num_blocks=9)
    sequence = admitted(blocks, 13)
    full, windowed = sequence.tables
    # ceil(13 / 4) of the one; of the other ceil(5 / 4) + 1, which hold 6 tokens wherever they begin
    assert (len(full.blocks), len(windowed.blocks)) == (4, 3)
    assert blocks.reserve(sequence, 13)
    assert len(windowed.blocks) == 4
    blocks.advance(sequence, 13)
    assert (full.first, len(full.blocks)) == (0, 4)
    assert (windowed.first, len(windowed.blocks)) == (2, 2)
    assert blocks.live_tokens == 9  # the mean of 13 and of the 5 from 8 to 12
    blocks.release(sequence)
    assert (blocks.free_blocks, blocks.live_tokens) == (9, 0)


def test_a_forked_block_lives_until_its_last_holder_goes() -> None:
    blocks = BlockManager(layout_of([None]), num_blocks=4)
    parent = admitted(blocks, 6)
    blocks.advance(parent, 6)
    child = blocks.fork(parent)
    assert child is not None
    # the half-full second block is not shared
    assert child == SequenceBlocks((BlockTable(deque(list(parent.tables[0].blocks)[:1])),), 4, recent_from=4)
    blocks.release(parent)
    assert (blocks.live_blocks, blocks.live_tokens) == (1, 4)
    blocks.release(child)
    assert (blocks.live_blocks, blocks.live_tokens, blocks.free_blocks) == (0, 0, 4)


def test_a_window_that_moved_on_cannot_be_forked() -> None:
    """6 tokens, window 2: the next one sees 5 and 6, in the second block; of 4 tokens the next would see 3 and 4."""
    blocks = BlockManager(layout_of([2]), num_blocks=4)
    parent = admitted(blocks, 6)
    blocks.advance(parent, 6)
    with pytest.raises(ValueError, match="a window of 2 tokens has left what 4 of 6 tokens attend to"):
        blocks.fork(parent)


def test_recent_tokens_have_blocks_of_their_own() -> None:
    """The last 32 in blocks of 16, each of which takes 16 / 4 of them: 8 blocks in each of two tables."""
    blocks = BlockManager(layout_of([None, 40], block_size=16, recent=32), num_blocks=38)
    parent = admitted(blocks, 17)
    assert [(len(table.blocks), len(table.recent)) for table in parent.tables] == [(2, 8), (2, 8)]
    blocks.advance(parent, 17)
    assert (blocks.live_blocks, blocks.live_tokens) == (20, 17)
    child = blocks.fork(parent)
    assert child is not None
    assert (child.num_tokens, child.recent_from, parent.recent_from) == (16, 16, 0)
    assert not {block for table in child.tables for block in table.recent} & {
        block for table in parent.tables for block in table.recent
    }
    assert (blocks.free_blocks, blocks.fork(parent)) == (2, None)
    blocks.release(parent)
    assert (blocks.live_blocks, blocks.live_tokens) == (2 + 16, 16)
    blocks.release(child)
    assert (blocks.free_blocks, blocks.live_tokens) == (38, 0)


def test_refuses_tokens_without_a_block() -> None:
    blocks = BlockManager(layout_of([None]), num_blocks=4)
    with pytest.raises(ValueError, match=r"0 \+ 5 tokens do not fit 1 blocks of 4"):
        blocks.advance(admitted(blocks, 4), 5)
