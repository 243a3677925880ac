"""The block manager against a memory that remembers what was written where."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from kvtide_sizing.memory.kv import KvLayout
from kvtide_worker.engine.block_manager import BlockManager, BlockTable, SequenceBlocks
from kvtide_worker.engine.prefix_cache import PrefixCache
from tests.worker.engine.layouts import layout_of, layouts

NUM_BLOCKS = 30

# What a slot of the pool holds: the table, the salt, and all tokens up to its own, which is what its vectors depend on.
Content = tuple[int, str, tuple[int, ...]]


@dataclass(eq=False)
class Traced:
    """A sequence, its tokens so far, and how many of them it was let in with."""

    blocks: SequenceBlocks
    salt: str
    tokens: list[int]
    admitted: int
    recent_from: int = 0

    def token_ids(self, start: int, end: int) -> list[int]:
        return self.tokens[start:end]

    def content(self, table: int, token: int) -> Content:
        return table, self.salt, tuple(self.tokens[: token + 1])


class BlockManagerMachine(RuleBasedStateMachine):
    """Random sequences that come, run steps, fork, are preempted and go. `memory` is what a pool would hold.

    Few tokens and salts, so that many begin alike; few blocks, so that what is cached is taken again.
    """

    sequences = Bundle("sequences")

    @initialize(layout=layouts, hit_blocks=st.integers(0, 2))
    def start(self, layout: KvLayout, hit_blocks: int) -> None:
        """hit_blocks: how many a hit has a multiple of; 0 has no prefix cache at all"""
        self.layout = layout
        self.prefix = PrefixCache(layout, aligned_tokens=hit_blocks * layout.block_size) if hit_blocks else None
        self.hit_tokens = hit_blocks * layout.block_size
        self.num_blocks = NUM_BLOCKS
        self.blocks = BlockManager(layout, NUM_BLOCKS, self.prefix)
        self.alive: list[Traced] = []
        self.memory: dict[tuple[int, int], Content] = {}
        self.recent: dict[tuple[int, int], Content] = {}

    @rule(
        target=sequences,
        tokens=st.lists(st.sampled_from([7, 7, 7, 8]), min_size=1, max_size=60),
        salt=st.sampled_from(["", "", "tenant"]),
        kept=st.integers(0, 5),
    )
    def admit(self, tokens: list[int], salt: str, kept: int) -> object:
        traced = Traced(SequenceBlocks(), salt, tokens, len(tokens))
        return traced if self.let_in(traced, kept) else multiple()

    def let_in(self, traced: Traced, kept: int) -> bool:
        if self.prefix is not None:
            traced.blocks.chain = self.prefix.chain(traced.salt, traced.token_ids)
        tokens, available = len(traced.tokens), self.blocks.available_blocks
        most = self.layout.sequence_blocks(tokens)
        if not self.blocks.admit(traced.blocks, tokens, kept):
            assert most + kept > available
            assert traced.blocks == SequenceBlocks()
            return False
        assert traced.blocks.num_blocks <= most
        assert available - self.blocks.available_blocks <= most
        assert available - self.blocks.available_blocks + kept <= available
        found = traced.blocks.num_tokens
        assert found == 0 or (found % self.hit_tokens == 0 and found <= tokens - 2)
        traced.admitted, traced.recent_from = tokens, found
        self.alive.append(traced)
        return True

    @rule(sequence=sequences, new_tokens=st.integers(1, 16), next_token=st.sampled_from([7, 8]))
    def step(self, sequence: Traced, new_tokens: int, next_token: int) -> None:
        if sequence not in self.alive:
            return  # it has lost its blocks
        held = [(table.first, list(table.blocks)) for table in sequence.blocks.tables]
        past, available = sequence.blocks.num_tokens, self.blocks.available_blocks
        holders = self.holders()
        if not self.blocks.reserve(sequence.blocks, past + new_tokens):
            shared = sum(any(holders[block] > 1 for block in table.blocks) for table in sequence.blocks.tables)
            assert available < self.most_blocks(sequence, new_tokens) - sequence.blocks.num_blocks + shared
            assert held == [(table.first, list(table.blocks)) for table in sequence.blocks.tables]
            return
        assert sequence.blocks.num_blocks <= self.most_blocks(sequence, new_tokens)
        self.copy()
        sequence.tokens += [next_token] * (past + new_tokens - len(sequence.tokens))
        holders = self.holders()
        for token in range(past, past + new_tokens):
            for index, table in enumerate(sequence.blocks.tables):
                block = table.blocks[token // self.layout.block_size - table.first]
                assert holders[block] == 1, "nobody writes to what others hold"
                assert self.prefix is None or not self.prefix.is_sealed(block)
                self.memory[block, token % self.layout.block_size] = sequence.content(index, token)
                if self.layout.recent:
                    self.recent[self.ring(table, token)] = sequence.content(index, token)
        self.blocks.advance(sequence.blocks, new_tokens)

    def ring(self, table: BlockTable, token: int) -> tuple[int, int]:
        """Where a recent token lies."""
        part, place = divmod(token % self.layout.recent, self.layout.recent_per_block)
        return table.recent[part], place

    def copy(self) -> None:
        """What a pool does with the pairs: all are read, then all are written."""
        pairs = self.blocks.take_copies()
        assert len({target for _, target in pairs}) == len(pairs)
        for memory in (self.memory, self.recent):
            read = [
                (target, place, content)
                for source, target in pairs
                for (block, place), content in list(memory.items())
                if block == source
            ]
            for target, place, content in read:
                memory[target, place] = content

    def most_blocks(self, sequence: Traced, new_tokens: int) -> int:
        """What a sequence may hold in a step, of which each windowed table has its share."""
        most = max(sequence.admitted, sequence.blocks.num_tokens + new_tokens)
        share = self.layout.windowed_tables * -(-(new_tokens - 1) // self.layout.block_size)
        return self.layout.sequence_blocks(most) + share

    @rule(target=sequences, sequence=sequences, kept=st.integers(0, 5))
    def fork(self, sequence: Traced, kept: int) -> object:
        if not sequence.blocks.num_tokens:
            return multiple()
        child = Traced(SequenceBlocks(), sequence.salt, sequence.tokens[: sequence.blocks.num_tokens], 0)
        available, tables = self.blocks.available_blocks, len(self.layout.tables)
        if self.prefix is not None:
            child.blocks.chain = self.prefix.chain(child.salt, child.token_ids)
        if not self.blocks.fork(sequence.blocks, child.blocks, kept):
            assert tables * (self.layout.recent_blocks + 1) + kept > available == self.blocks.available_blocks
            assert child.blocks == SequenceBlocks()
            return multiple()
        assert self.blocks.available_blocks == available - tables * self.layout.recent_blocks
        child.recent_from = sequence.recent_from
        # The memory's copies are made before anybody writes, as a step would.
        self.alive.append(child)
        return child

    @rule(sequence=consumes(sequences), kept=st.booleans())
    def release(self, sequence: Traced, kept: bool) -> None:
        self.blocks.release(sequence.blocks, kept=kept)
        assert sequence.blocks == SequenceBlocks()
        self.alive = [other for other in self.alive if other is not sequence]

    @rule(target=sequences, sequence=consumes(sequences))
    def preempt(self, sequence: Traced) -> object:
        """What had its blocks taken comes back, with the same tokens, and finds some of its own."""
        self.release(sequence, kept=True)
        return sequence if self.let_in(sequence, 0) else multiple()

    @rule(more_blocks=st.integers(0, 12), recent=st.integers(0, 3))
    def reencode(self, more_blocks: int, recent: int) -> None:
        """The pool has more blocks from now on, and may begin to keep recent tokens. What is told to hold nothing is
        lost; who runs gets blocks for recent tokens, or loses all that it has."""
        self.copy()
        used = self.blocks.used_blocks(one.blocks for one in self.alive)
        tokens, ring = ({block for of_table in used for block in of_table[side]} for side in (0, 1))
        self.memory = {place: content for place, content in self.memory.items() if place[0] in tokens}
        self.recent = {place: content for place, content in self.recent.items() if place[0] in ring}
        cached = self.blocks.cached_blocks
        begins = bool(recent) and not self.layout.recent and self.layout.block_size >= 4
        if begins:
            self.layout = replace(self.layout, recent=recent)
        self.num_blocks += more_blocks
        self.blocks.grow(self.layout, self.num_blocks)
        assert self.blocks.cached_blocks == cached
        for one in list(self.alive) if begins else ():
            available = self.blocks.available_blocks
            if self.blocks.add_recent(one.blocks):
                one.recent_from = one.blocks.num_tokens
            else:
                assert available < self.layout.recent_blocks * len(self.layout.tables)
                self.blocks.release(one.blocks)
                self.alive.remove(one)

    def holders(self) -> Counter[int]:
        tables = [table for one in self.alive for table in one.blocks.tables]
        return Counter(block for table in tables for block in [*table.blocks, *table.recent])

    @invariant()
    def conserves_blocks(self) -> None:
        blocks, held = self.blocks, self.holders()
        assert blocks.live_blocks == len(held)
        assert blocks.free_blocks + blocks.live_blocks + blocks.cached_blocks == self.num_blocks
        assert self.prefix is not None or blocks.cached_blocks == 0

    @invariant()
    def nobody_holds_more_than_the_layout_says(self) -> None:
        for one in self.alive:
            most = self.layout.sequence_blocks(max(one.admitted, one.blocks.num_tokens))
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
        """Of its own tokens and its own salt, whoever wrote it."""
        self.copy()
        size = self.layout.block_size
        for one in self.alive:
            past = one.blocks.num_tokens
            for index, (table, of_layers) in enumerate(zip(one.blocks.tables, self.layout.tables, strict=True)):
                window = past + 1 if of_layers.window is None else of_layers.window
                for token in range(max(0, past + 1 - window), past):
                    place = table.blocks[token // size - table.first], token % size
                    assert self.memory[place] == one.content(index, token)
                for token in range(max(one.recent_from, past - self.layout.recent), past):
                    assert self.recent[self.ring(table, token)] == one.content(index, token)

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
        assert self.blocks.live_tokens * tables <= self.num_blocks * size + tables - 1

    def teardown(self) -> None:
        for one in self.alive:
            self.blocks.release(one.blocks, kept=False)
        assert (self.blocks.live_blocks, self.blocks.live_tokens) == (0, 0)
        if self.prefix is not None and self.layout.recent == 0 and self.layout.windowed_tables == 0:
            # Every block is taken by a stranger: nothing may be left of what was known.
            stranger = SequenceBlocks()
            whole = self.num_blocks // len(self.layout.tables) * self.layout.block_size
            assert self.blocks.admit(stranger, whole, 0)
            assert self.blocks.cached_blocks <= self.num_blocks % len(self.layout.tables)
            if not self.blocks.cached_blocks:
                assert len(self.prefix) == 0


TestBlockManager = BlockManagerMachine.TestCase
TestBlockManager.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)


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


def forked(blocks: BlockManager, parent: SequenceBlocks) -> SequenceBlocks:
    child = SequenceBlocks()
    assert blocks.fork(parent, child, 0)
    return child


def test_who_writes_to_a_shared_block_gets_a_copy() -> None:
    """6 tokens in blocks of 4: both blocks are shared by three, the second has room for two more tokens."""
    blocks = BlockManager(layout_of([None]), num_blocks=5)
    parent = admitted(blocks, 6)
    blocks.advance(parent, 6)
    full, partial = parent.tables[0].blocks
    one, two = forked(blocks, parent), forked(blocks, parent)
    assert [list(sequence.tables[0].blocks) for sequence in (one, two)] == [[full, partial]] * 2
    assert (blocks.live_blocks, blocks.live_tokens) == (2, 6)

    assert blocks.reserve(one, 7)
    assert blocks.reserve(two, 7)
    first, second = one.tables[0].blocks[1], two.tables[0].blocks[1]
    assert sorted(blocks.take_copies()) == sorted([(partial, first), (partial, second)])
    assert blocks.take_copies() == []
    assert len({partial, first, second}) == 3
    for sequence in (one, two):
        blocks.advance(sequence, 1)
    # Nobody is left to share it with: the parent writes where it is.
    assert blocks.reserve(parent, 7)
    assert blocks.take_copies() == []
    assert parent.tables[0].blocks[1] == partial
    assert (blocks.live_blocks, blocks.live_tokens) == (4, 4 + 2 + 3 + 3)
    for sequence in (parent, one, two):
        blocks.release(sequence)
    assert (blocks.free_blocks, blocks.live_tokens) == (5, 0)


def test_no_copy_is_made_of_a_full_block() -> None:
    blocks = BlockManager(layout_of([None]), num_blocks=4)
    parent = admitted(blocks, 8)
    blocks.advance(parent, 8)
    child = forked(blocks, parent)
    assert blocks.reserve(child, 9)
    assert blocks.take_copies() == []
    assert list(child.tables[0].blocks)[:2] == list(parent.tables[0].blocks)


def test_a_copy_for_one_that_is_gone_is_not_made_for_who_has_its_block_now() -> None:
    blocks = BlockManager(layout_of([None]), num_blocks=3)
    parent = admitted(blocks, 2)
    blocks.advance(parent, 2)
    child = forked(blocks, parent)
    assert blocks.reserve(child, 3)
    (gone,) = child.tables[0].blocks
    blocks.release(child)
    other = forked(blocks, parent)
    assert blocks.reserve(other, 3)
    assert list(other.tables[0].blocks) == [gone]
    assert blocks.take_copies() == [(parent.tables[0].blocks[0], gone)]


def test_a_fork_leaves_what_is_kept() -> None:
    """One block is held; a fork needs one to write to, which it does not take yet."""
    blocks = BlockManager(layout_of([None]), num_blocks=3)
    parent = admitted(blocks, 2)
    blocks.advance(parent, 2)
    child = SequenceBlocks()
    assert not blocks.fork(parent, child, kept_blocks=2)
    assert child == SequenceBlocks()
    assert blocks.fork(parent, child, kept_blocks=1)
    assert blocks.free_blocks == 2


def test_recent_tokens_have_blocks_of_their_own() -> None:
    """The last 32 in blocks of 16, each of which takes 16 / 4 of them: 8 blocks in each of two tables."""
    blocks = BlockManager(layout_of([None, 40], block_size=16, recent=32), num_blocks=39)
    parent = admitted(blocks, 17)
    assert [(len(table.blocks), len(table.recent)) for table in parent.tables] == [(2, 8), (2, 8)]
    blocks.advance(parent, 17)
    assert (blocks.live_blocks, blocks.live_tokens) == (20, 17)
    child = forked(blocks, parent)
    assert (child.num_tokens, child.recent_from) == (17, 0)
    pairs = [
        pair
        for own, table in zip(child.tables, parent.tables, strict=True)
        for pair in zip(table.recent, own.recent, strict=True)
    ]
    assert sorted(blocks.take_copies()) == sorted(pairs)
    assert len({block for pair in pairs for block in pair}) == 32
    assert blocks.free_blocks == 39 - 20 - 16
    assert not blocks.fork(parent, SequenceBlocks(), 0)
    blocks.release(parent)
    assert (blocks.live_blocks, blocks.live_tokens) == (4 + 16, 17)
    blocks.release(child)
    assert (blocks.free_blocks, blocks.live_tokens) == (39, 0)


def test_refuses_tokens_without_a_block() -> None:
    blocks = BlockManager(layout_of([None]), num_blocks=4)
    with pytest.raises(ValueError, match=r"0 \+ 5 tokens do not fit 1 blocks of 4"):
        blocks.advance(admitted(blocks, 4), 5)
