"""Which block of the KV pool belongs to whom. Numbers only: it never sees a tensor."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from kvtide_sizing.memory.kv import KvLayout
from kvtide_worker.engine.prefix_cache import ALIGNED_TOKENS, BlockChain, PrefixCache, PrefixNode


@dataclass(slots=True)
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


@dataclass(slots=True)
class SequenceBlocks:
    """One sequence's block tables, as the layout has them, and how many of its tokens were written to them.

    tables is empty while it holds nothing.

    recent_from: the oldest token that its recent blocks may have: earlier ones it has from another sequence
    chain:       what its blocks are found by; None where they are not to be, and no others either
    sealed:      of its full blocks, from the first on
    aligned:     whether all its chunks began where hits may end: only then is a block sealed
    """

    tables: tuple[BlockTable, ...] = ()
    num_tokens: int = 0
    recent_from: int = 0
    chain: BlockChain | None = field(default=None, compare=False)
    sealed: list[PrefixNode] = field(default_factory=list)
    aligned: bool = True

    @property
    def num_blocks(self) -> int:
        """Blocks of all tables, recent ones included; one that others share counts too."""
        return sum(len(table.blocks) + len(table.recent) for table in self.tables)


class BlockManager:
    """Hands out the pool's blocks, and counts who uses each one. Every operation is O(1) per block it touches.

    A block is live while a table holds it, cached while nobody does but its content may be wanted again, and free
    otherwise: live + cached + free = num_blocks, of all tables together. Cached ones are taken where none is free,
    the one that was used longest ago first, and of a sequence its last ones first.

    Of one sequence of n tokens, tables hold `layout.sequence_blocks(n)` at most between two steps. A step of k tokens
    adds ceil((k - 1) / block_size) for each windowed table until it has ended: `layout.step_blocks` is that of a whole
    step for one sequence.

    Nobody writes to a block that two tables hold: who is about to is given another one, and a pair of blocks to copy.

    prefix:         where equal beginnings are found; None shares nothing but between a sequence and its forks
    aligned_tokens: chunks that begin at multiples of it are computed alike however a prompt is cut
    """

    def __init__(self, layout: KvLayout, num_blocks: int, prefix: PrefixCache | None = None) -> None:
        self.layout = layout
        self.num_blocks = num_blocks
        self.aligned_tokens = prefix.aligned_tokens if prefix is not None else max(ALIGNED_TOKENS, layout.block_size)
        self._prefix = prefix
        self._free = list(reversed(range(num_blocks)))
        self._references = [0] * num_blocks
        self._live_tokens = 0
        self._windowed = layout.windowed_tables > 0
        self._copies: dict[int, int] = {}

    @property
    def free_blocks(self) -> int:
        """Blocks that nobody holds and nobody will want again."""
        return len(self._free)

    @property
    def cached_blocks(self) -> int:
        """Blocks kept for their content alone."""
        return self._prefix.unused_blocks if self._prefix is not None else 0

    @property
    def available_blocks(self) -> int:
        """Blocks that can be taken: free and cached ones."""
        return len(self._free) + self.cached_blocks

    @property
    def live_blocks(self) -> int:
        """Blocks that at least one table holds."""
        return self.num_blocks - self.available_blocks

    @property
    def live_tokens(self) -> int:
        """Tokens written in live blocks, as the mean of all tables, rounded up; those in a shared block count once.

        Recent blocks have none of their own. Of a pool without such that is full to the last slot it is
        num_blocks · block_size / tables, which is the plan's capacity.
        """
        return -(-self._live_tokens // len(self.layout.tables))

    def used_blocks(self, sequences: Iterable[SequenceBlocks]) -> list[tuple[list[int], list[int]]]:
        """Of each table its blocks that hold something: with tokens of these sequences, which are all, or cached ones;
        and with recent tokens."""
        tokens: list[set[int]] = [set() for _ in self.layout.tables]
        recent: list[list[int]] = [[] for _ in self.layout.tables]
        for sequence in sequences:
            for number, table in enumerate(sequence.tables):
                tokens[number].update(table.blocks)
                recent[number] += table.recent
        if self._prefix is not None:
            for number, blocks in enumerate(tokens):
                blocks.update(self._prefix.blocks_of(number))
        return [(sorted(own), held) for own, held in zip(tokens, recent, strict=True)]

    def grow(self, layout: KvLayout, num_blocks: int) -> None:
        """Note that the pool has more blocks of another layout now, with the content of those it had.

        Raises ValueError for another block size, other tables, or fewer blocks.
        """
        old = self.layout
        if (layout.block_size, layout.tables) != (old.block_size, old.tables) or num_blocks < self.num_blocks:
            raise ValueError(
                f"{self.num_blocks} blocks of {old.block_size} tokens cannot go on as {num_blocks} of "
                f"{layout.block_size}, or in other tables"
            )
        self._free[:0] = reversed(range(self.num_blocks, num_blocks))
        self._references += [0] * (num_blocks - self.num_blocks)
        self.layout, self.num_blocks = layout, num_blocks

    def add_recent(self, sequence: SequenceBlocks) -> bool:
        """Give an admitted sequence the blocks for recent tokens that it has none of yet; they begin with those that it
        writes next. False, and nothing changed, where too few can be taken."""
        if self.layout.recent_blocks * len(sequence.tables) > self.available_blocks:
            return False
        for table in sequence.tables:
            table.recent = self._take_recent()
        sequence.recent_from = sequence.num_tokens
        return True

    def reset(self, layout: KvLayout, num_blocks: int) -> None:
        """Begin again with another pool, in which nothing is known. No sequence may hold a block."""
        assert not self.live_blocks, "a sequence would lose its blocks"
        if self._prefix is not None:
            self._prefix.clear(layout)
        self.layout, self.num_blocks = layout, num_blocks
        self._free = list(reversed(range(num_blocks)))
        self._references = [0] * num_blocks
        self._copies = {}

    def drawn(self) -> str:
        """One character a block, by id: `#` one sequence has it, `&` several share it, `c` cached, `.` free."""
        cached = self._prefix.is_sealed if self._prefix is not None else lambda _: False
        return "".join(
            "#" if count == 1 else "&" if count else "c" if cached(block) else "."
            for block, count in enumerate(self._references)
        )

    def admit(self, sequence: SequenceBlocks, num_tokens: int, kept_blocks: int, *, reuse: bool = True) -> bool:
        """Give an empty sequence all that num_tokens of it hold at most, so that its prefill finds its blocks there.

        Of its chain, what is found counts as written: num_tokens of the sequence says how much (reuse: False finds
        nothing). A windowed table gets what its window takes, each one what recent tokens take. False, and nothing
        changed, where kept_blocks would not be left.
        """
        nodes: list[PrefixNode] = []
        if self._prefix is not None and sequence.chain is not None and reuse:
            nodes = self._prefix.find(sequence.chain, num_tokens)
        size, found = self.layout.block_size, len(nodes)
        whole, needed = -(-num_tokens // size), len(self.layout.tables) * self.layout.recent_blocks
        spans = []
        for index, of_layers in enumerate(self.layout.tables):
            first = of_layers.first_needed(found * size) // size
            end = min(whole, first + of_layers.sequence_blocks(num_tokens, size))
            shared = [block for node in nodes[first:] if (block := node.blocks[index]) is not None]
            needed += end - found + sum(not self._references[block] for block in shared)
            spans.append((first, end, shared))
        if needed + kept_blocks > self.available_blocks:
            return False
        # What is found comes first, so that none of it is taken for something else, nor forgotten: where a window sees
        # nothing of a prefix, its nodes have no user but this sequence once their blocks are taken.
        PrefixCache.join(nodes)
        for _, _, shared in spans:
            for block in shared:
                self._share(block)
        sequence.tables = tuple(BlockTable(deque(shared), first) for first, _, shared in spans)
        for table, (_, end, _) in zip(sequence.tables, spans, strict=True):
            table.recent = self._take_recent()
            self._extend(table, end)
        sequence.sealed, sequence.num_tokens, sequence.recent_from = nodes, found * size, found * size
        return True

    def reserve(self, sequence: SequenceBlocks, num_tokens: int) -> bool:
        """Give each table of an admitted sequence the blocks it lacks for num_tokens, the next step's included, and
        one of its own in place of one that it shares and is about to write to.

        False, and nothing changed, where too few can be taken.
        """
        assert sequence.tables, "only what was admitted grows"
        size = self.layout.block_size
        end, (number, written) = -(-num_tokens // size), divmod(sequence.num_tokens, size)
        shared, lacking = [], 0
        for table in sequence.tables:
            if table.end < end:
                lacking += end - table.end
            if written and self._references[table.blocks[number - table.first]] > 1:
                shared.append(table)
        if not lacking and not shared:
            return True
        if lacking + len(shared) > self.available_blocks:
            return False
        for table in shared:
            self._own(table, number - table.first, written)
        for table in sequence.tables:
            self._extend(table, end)
        return True

    def advance(self, sequence: SequenceBlocks, new_tokens: int) -> None:
        """Note that new_tokens were computed and written behind the last one: blocks that are full now are sealed, and
        what left a window is taken back.

        Raises ValueError where no block holds them.
        """
        assert sequence.tables, "only what was admitted is computed"
        size, past = self.layout.block_size, sequence.num_tokens
        written = past + new_tokens
        for table in sequence.tables:
            if written > table.end * size:
                raise ValueError(f"{past} + {new_tokens} tokens do not fit {table.end} blocks of {size}")
        sequence.num_tokens = written
        self._live_tokens += new_tokens * len(sequence.tables)
        if self._prefix is not None and sequence.chain is not None:
            if new_tokens > 1 and past % self.aligned_tokens:
                sequence.aligned = False
            if sequence.aligned and len(sequence.sealed) < written // size:
                self._seal(sequence, self._prefix, sequence.chain)
        if not self._windowed:
            return
        for table, of_layers in zip(sequence.tables, self.layout.tables, strict=True):
            while of_layers.window is not None and table.first < of_layers.first_needed(written) // size:
                self._drop(table.blocks.popleft(), size, kept=True)
                table.first += 1

    def fork(self, sequence: SequenceBlocks, child: SequenceBlocks, kept_blocks: int) -> bool:
        """Let an empty sequence share all blocks of another one that has the same tokens, and take copies of its recent
        ones. What it needs to write its next token is not taken, but must be there.

        False, and nothing changed, where kept_blocks would not be left.
        """
        of_tables = len(sequence.tables)
        if of_tables * (self.layout.recent_blocks + 1) + kept_blocks > self.available_blocks:
            return False
        held = -(-sequence.num_tokens // self.layout.block_size)
        child.tables = tuple(
            BlockTable(deque(islice(table.blocks, held - table.first)), table.first, self._take_recent())
            for table in sequence.tables
        )
        for own, table in zip(child.tables, sequence.tables, strict=True):
            for block in own.blocks:
                self._share(block)
            for source, target in zip(table.recent, own.recent, strict=True):
                self._copy(source, target)
        PrefixCache.join(sequence.sealed)
        child.sealed, child.aligned = list(sequence.sealed), sequence.aligned
        child.num_tokens, child.recent_from = sequence.num_tokens, sequence.recent_from
        return True

    def take_copies(self) -> list[tuple[int, int]]:
        """The pairs of blocks to copy, from the first to the second, before anything else is written to the pool.

        All are to be read before any is written: one sequence's block may have become another's.
        """
        copies, self._copies = [(source, target) for target, source in self._copies.items()], {}
        return copies

    def release(self, sequence: SequenceBlocks, *, kept: bool = True) -> None:
        """Take all blocks back and empty the sequence; a block that another one shares stays live, a sealed one cached.

        kept: False where what they hold is not to be found again
        """
        size = self.layout.block_size
        numbers = range(
            max((table.end for table in sequence.tables), default=0),
            min((table.first for table in sequence.tables), default=0),
            -1,
        )
        # In reverse, all tables together: cached blocks are of use with all before them, and with those beside them.
        # And so the free list gives them out again in the order they were in.
        for end in numbers:
            written = min(max(sequence.num_tokens - (end - 1) * size, 0), size)
            for table in reversed(sequence.tables):
                if table.blocks and table.end == end:
                    self._drop(table.blocks.pop(), written, kept=kept)
        for table in reversed(sequence.tables):
            for block in reversed(table.recent):
                self._drop(block, written_tokens=0, kept=False)
        if self._prefix is not None:
            for node in reversed(sequence.sealed):
                self._prefix.leave(node)
        sequence.tables, sequence.num_tokens, sequence.recent_from = (), 0, 0
        sequence.sealed, sequence.aligned = [], True

    def _seal(self, sequence: SequenceBlocks, prefix: PrefixCache, chain: BlockChain) -> None:
        while sequence.aligned and len(sequence.sealed) < sequence.num_tokens // self.layout.block_size:
            number = len(sequence.sealed)
            parent = sequence.sealed[-1] if number else None
            node = prefix.seal(chain, number, parent, [table.blocks[number - table.first] for table in sequence.tables])
            if node is None:
                sequence.aligned = False
            else:
                sequence.sealed.append(node)

    def _extend(self, table: BlockTable, end: int) -> None:
        for _ in range(end - table.end):
            table.blocks.append(self._take())

    def _own(self, table: BlockTable, place: int, written_tokens: int) -> None:
        """Put a block of its own in place of one that others hold too."""
        source = table.blocks[place]
        table.blocks[place] = target = self._take()
        self._references[source] -= 1
        self._live_tokens += written_tokens
        self._copy(source, target)

    def _copy(self, source: int, target: int) -> None:
        # Whose block the target was before may have wanted a copy that it never read.
        self._copies.pop(target, None)
        self._copies[target] = source

    def _take_recent(self) -> tuple[int, ...]:
        return tuple(self._take() for _ in range(self.layout.recent_blocks))

    def _take(self) -> int:
        if self._free:
            block = self._free.pop()
        else:
            assert self._prefix is not None, "who takes a block knows that there is one"
            block = self._prefix.evict()
        self._references[block] = 1
        return block

    def _share(self, block: int) -> None:
        if not self._references[block]:
            assert self._prefix is not None, "a block that nobody holds was found"
            self._prefix.revive(block)
            self._live_tokens += self.layout.block_size
        self._references[block] += 1

    def _drop(self, block: int, written_tokens: int, *, kept: bool) -> None:
        self._references[block] -= 1
        if self._references[block]:
            return
        self._live_tokens -= written_tokens
        if self._prefix is not None and self._prefix.is_sealed(block):
            if kept:
                self._prefix.keep(block)
                return
            self._prefix.unseal(block)
        self._free.append(block)
