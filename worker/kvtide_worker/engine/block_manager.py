"""Which block of the KV pool belongs to whom. Numbers only: it never sees a tensor."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class BlockTable:
    """One sequence's blocks in order, and how many tokens of it the pool holds.

    blocks      [7, 2, 5]      block_size 4
    num_tokens  9              7: ####   2: ####   5: #...
    """

    blocks: list[int] = field(default_factory=list)
    num_tokens: int = 0


class BlockManager:
    """Hands out the pool's blocks, and counts who uses each one. Every operation is O(1) per block it touches.

    A block is live while a table holds it, cached while nobody does but its content may be wanted again, and free
    otherwise: live + cached + free = num_blocks.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
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
        """Tokens written in live blocks; those in a shared block count once."""
        return self._live_tokens

    def blocks_for(self, num_tokens: int) -> int:
        """How many blocks a sequence of so many tokens takes."""
        return -(-num_tokens // self.block_size)

    def reserve(self, table: BlockTable, num_tokens: int) -> bool:
        """Give table the blocks it lacks for num_tokens; False, and nothing changed, where too few are free."""
        missing = self.blocks_for(num_tokens) - len(table.blocks)
        if missing > self.free_blocks:
            return False
        for _ in range(missing):
            block = self._free.pop()
            self._references[block] = 1
            table.blocks.append(block)
        return True

    def advance(self, table: BlockTable, new_tokens: int) -> None:
        """Note that new_tokens were written behind table's last one. Raises ValueError where no block holds them."""
        if table.num_tokens + new_tokens > len(table.blocks) * self.block_size:
            raise ValueError(
                f"{table.num_tokens} + {new_tokens} tokens do not fit {len(table.blocks)} blocks of {self.block_size}"
            )
        table.num_tokens += new_tokens
        self._live_tokens += new_tokens

    def fork(self, table: BlockTable) -> BlockTable:
        """A table that shares table's full blocks. The last, partly filled one is still written to: it stays behind."""
        full = table.num_tokens // self.block_size
        for block in table.blocks[:full]:
            self._references[block] += 1
        return BlockTable(table.blocks[:full], full * self.block_size)

    def release(self, table: BlockTable) -> None:
        """Take table's blocks back and empty it; a block that another table shares stays live."""
        # In reverse, so that the free list gives them out again in the order they were in.
        for index in reversed(range(len(table.blocks))):
            block = table.blocks[index]
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free.append(block)
                written = table.num_tokens - index * self.block_size
                self._live_tokens -= min(max(written, 0), self.block_size)
        table.blocks.clear()
        table.num_tokens = 0
