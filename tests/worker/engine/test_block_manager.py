"""The block manager against a model of it that counts from scratch."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from kvtide_worker.engine.block_manager import BlockManager, BlockTable

NUM_BLOCKS, BLOCK_SIZE = 12, 4


class BlockManagerMachine(RuleBasedStateMachine):
    """Random sequences that come, grow, fork and go. `holders` is who holds what, kept by the tests' own counting."""

    tables = Bundle("tables")

    def __init__(self) -> None:
        super().__init__()
        self.blocks = BlockManager(NUM_BLOCKS, BLOCK_SIZE)
        self.alive: list[BlockTable] = []
        self.forked: set[int] = set()

    @rule(target=tables, tokens=st.integers(1, NUM_BLOCKS * BLOCK_SIZE))
    def admit(self, tokens: int) -> object:
        table = BlockTable()
        free = self.blocks.free_blocks
        if not self.blocks.reserve(table, tokens):
            assert -(-tokens // BLOCK_SIZE) > free
            assert table == BlockTable()
            return multiple()
        self.alive.append(table)
        return table

    @rule(table=tables, tokens=st.integers(1, 9))
    def append(self, table: BlockTable, tokens: int) -> None:
        before = list(table.blocks)
        if self.blocks.reserve(table, table.num_tokens + tokens):
            assert table.blocks[: len(before)] == before
            self.blocks.advance(table, tokens)

    @rule(target=tables, table=tables)
    def fork(self, table: BlockTable) -> BlockTable:
        child = self.blocks.fork(table)
        self.forked.update(child.blocks)
        self.alive.append(child)
        return child

    @rule(table=consumes(tables))
    def release(self, table: BlockTable) -> None:
        self.blocks.release(table)
        self.alive = [other for other in self.alive if other is not table]

    @invariant()
    def conserves_blocks(self) -> None:
        held = Counter(block for table in self.alive for block in table.blocks)
        assert self.blocks.live_blocks == len(held)
        assert self.blocks.free_blocks + self.blocks.live_blocks + self.blocks.cached_blocks == NUM_BLOCKS
        # Two tables hold the same block only where one was forked from the other.
        assert {block for block, holders in held.items() if holders > 1} <= self.forked

    @invariant()
    def counts_written_tokens_once(self) -> None:
        written = {
            (table.blocks[token // BLOCK_SIZE], token % BLOCK_SIZE)
            for table in self.alive
            for token in range(table.num_tokens)
        }
        assert self.blocks.live_tokens == len(written)


TestBlockManager = BlockManagerMachine.TestCase
TestBlockManager.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_all_or_nothing() -> None:
    blocks = BlockManager(num_blocks=3, block_size=16)
    first, second = BlockTable(), BlockTable()
    assert blocks.reserve(first, 17)
    assert not blocks.reserve(second, 17)
    assert (blocks.free_blocks, second.blocks) == (1, [])
    assert blocks.reserve(second, 16)


@pytest.mark.parametrize(("tokens", "expected"), [(0, 0), (1, 1), (16, 1), (17, 2), (33, 3)])
def test_blocks_for(tokens: int, expected: int) -> None:
    assert BlockManager(num_blocks=3, block_size=16).blocks_for(tokens) == expected


def test_a_forked_block_lives_until_its_last_holder_goes() -> None:
    blocks = BlockManager(num_blocks=4, block_size=4)
    parent = BlockTable()
    blocks.reserve(parent, 6)
    blocks.advance(parent, 6)
    child = blocks.fork(parent)
    assert (child.blocks, child.num_tokens) == (parent.blocks[:1], 4)  # the half-full second block is not shared
    blocks.release(parent)
    assert (blocks.live_blocks, blocks.live_tokens) == (1, 4)
    blocks.release(child)
    assert (blocks.live_blocks, blocks.live_tokens, blocks.free_blocks) == (0, 0, 4)


def test_refuses_tokens_without_a_block() -> None:
    blocks = BlockManager(num_blocks=4, block_size=4)
    table = BlockTable()
    blocks.reserve(table, 4)
    with pytest.raises(ValueError, match=r"0 \+ 5 tokens do not fit 1 blocks of 4"):
        blocks.advance(table, 5)
