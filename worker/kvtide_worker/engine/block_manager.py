"""Which block of the KV pool belongs to whom. Numbers only: it never sees a tensor."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import islice

from kvtide_sizing.memory.kv import KvLayout


@dataclass
class BlockTable:
    """A sequence's blocks in one table's layers, in order, without those that it gave back.

    blocks       [7, 2, 5]      block_size 4, 13 tokens, the next one sees 6
    first        2              given back: 0 to 3, 4 to 7      7: ####   2: ####   5: #...
    recent       (1, 6)         what its last tokens are in beside, where the layout keeps any: never shared
    """

    blocks: deque[int] = field(default_factory=deque)
    first: int = 0
    recent: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        """The number of the block that comes next."""
        return self.first + len(self.blocks)


@dataclass
class SequenceBlocks:
    """One sequence's block tables, as the layout has them, and how many of its tokens were written to them.

    tables is empty while it holds nothing.
    recent_from: the oldest token that its recent blocks may have: earlier ones it has from another sequence
    """

    tables: tuple[BlockTable, ...] = ()
    num_tokens: int = 0
    recent_from: int = 0

    @property
    def num_blocks(self) -> int:
        """Blocks of all tables, recent ones included."""
        return sum(len(table.blocks) + len(table.recent) for table in self.tables)


class BlockManager:
    """Hands out the pool's blocks, and counts who uses each one. Every operation is O(1) per block it touches.

    A block is live while a table holds it, cached while nobody does but its content may be wanted again, and free
    otherwise: live + cached + free = num_blocks, of all tables together.

    Of one sequence of n tokens, tables hold `layout.sequence_blocks(n)` at most between two steps. A step of k tokens
    adds ceil((k - 1) / block_size) for each windowed table until it has ended: `layout.step_blocks` is that of a whole
    step for one sequence.
    """

    def __init__(self, layout: KvLayout, num_blocks: int) -> None:
        self.layout = layout
        self.num_blocks = num_blocks
        self._free = list(reversed(range(num_blocks)))
        self._references = [0] * num_blocks
        self._live_tokens = 0

    @property
    def free_blocks(self) -> int:
        """Blocks that nobody holds and nobody will want again."""
        return len(self._free)

    @property
    def cached_blocks(self) -> int:
        """Blocks kept for their content alone. None are, as no prefix is reused yet."""
        return 0

    @property
    def live_blocks(self) -> int:
        """Blocks that at least one table holds."""
        return self.num_blocks - self.free_blocks - self.cached_blocks

    @property
    def live_tokens(self) -> int:
        """Tokens written in live blocks, as the mean of all tables, rounded up; those in a shared block count once.

        Recent blocks have none of their own. Of a pool without such that is full to the last slot it is
        num_blocks · block_size / tables, which is the plan's capacity.
        """
        return -(-self._live_tokens // len(self.layout.tables))

    def admit(self, sequence: SequenceBlocks, num_tokens: int, kept_blocks: int) -> bool:
        """Give an empty sequence all that num_tokens of it hold at most, so that its prefill finds its blocks there.

        A windowed table gets what its window takes, each one what recent tokens take. False, and nothing changed,
        where kept_blocks would not be left.
        """
        if self.layout.sequence_blocks(num_tokens) + kept_blocks > self.free_blocks:
            return False
        sequence.tables = tuple(BlockTable(recent=self._take_recent()) for _ in self.layout.tables)
        for table, of_layers in zip(sequence.tables, self.layout.tables, strict=True):
            self._extend(table, of_layers.sequence_blocks(num_tokens, self.layout.block_size))
        return True

    def reserve(self, sequence: SequenceBlocks, num_tokens: int) -> bool:
        """Give each table of an admitted sequence the blocks it lacks for num_tokens, the next step's included.

        False, and nothing changed, where too few are free.
        """
        assert sequence.tables, "only what was admitted grows"
        end = -(-num_tokens // self.layout.block_size)
        if sum(max(0, end - table.end) for table in sequence.tables) > self.free_blocks:
            return False
        for table in sequence.tables:
            self._extend(table, end)
        return True

    def advance(self, sequence: SequenceBlocks, new_tokens: int) -> None:
        """Note that new_tokens were written behind the last one, and take back what left a window.

        Raises ValueError where no block holds them.
        """
        written = sequence.num_tokens + new_tokens
        ends = [table.end for table in sequence.tables] or [0]
        if written > min(ends) * self.layout.block_size:
            raise ValueError(
                f"{sequence.num_tokens} + {new_tokens} tokens do not fit {min(ends)} blocks of {self.layout.block_size}"
            )
        sequence.num_tokens = written
        self._live_tokens += new_tokens * len(sequence.tables)
        for table, of_layers in zip(sequence.tables, self.layout.tables, strict=True):
            while table.first < of_layers.first_needed(written) // self.layout.block_size:
                self._drop(table.blocks.popleft(), self.layout.block_size)
                table.first += 1

    def fork(self, sequence: SequenceBlocks) -> SequenceBlocks | None:
        """A sequence that shares the full blocks. The last, partly filled one is still written to: it stays behind.

        Its recent blocks are its own and empty. None where too few are free for them.
        Raises ValueError where a table has given back what the shorter sequence still attends to.
        """
        full = sequence.num_tokens // self.layout.block_size
        num_tokens = full * self.layout.block_size
        for table, of_layers in zip(sequence.tables, self.layout.tables, strict=True):
            if table.first > of_layers.first_needed(num_tokens) // self.layout.block_size:
                raise ValueError(
                    f"a window of {of_layers.window} tokens has left what {num_tokens} of {sequence.num_tokens} "
                    f"tokens attend to: such a sequence cannot be shared"
                )
        if len(sequence.tables) * self.layout.recent_blocks > self.free_blocks:
            return None
        tables = tuple(
            BlockTable(deque(islice(table.blocks, full - table.first)), table.first, self._take_recent())
            for table in sequence.tables
        )
        for table in tables:
            for block in table.blocks:
                self._references[block] += 1
        return SequenceBlocks(tables, num_tokens, recent_from=num_tokens)

    def release(self, sequence: SequenceBlocks) -> None:
        """Take all blocks back and empty the sequence; a block that another one shares stays live."""
        size = self.layout.block_size
        for table in reversed(sequence.tables):
            # In reverse, so that the free list gives them out again in the order they were in.
            while table.blocks:
                written = sequence.num_tokens - (table.end - 1) * size
                self._drop(table.blocks.pop(), min(max(written, 0), size))
            for block in reversed(table.recent):
                self._drop(block, written_tokens=0)
        sequence.tables, sequence.num_tokens, sequence.recent_from = (), 0, 0

    def _extend(self, table: BlockTable, end: int) -> None:
        for _ in range(end - table.end):
            table.blocks.append(self._take())

    def _take_recent(self) -> tuple[int, ...]:
        return tuple(self._take() for _ in range(self.layout.recent_blocks))

    def _take(self) -> int:
        block = self._free.pop()
        self._references[block] = 1
        return block

    def _drop(self, block: int, written_tokens: int) -> None:
        self._references[block] -= 1
        if self._references[block] == 0:
            self._free.append(block)
            self._live_tokens -= written_tokens
