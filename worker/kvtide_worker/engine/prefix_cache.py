"""Which full blocks hold what, so that a prompt that begins like an earlier one finds them. Numbers only, no tensors.

root ──► node 0 ──► node 1 ──► node 2        a node is block_size tokens behind all those before it;
  │        7,2        5,-        9,4         7,2 are the blocks of its two tables, - one that is gone
  └────► node 0' ─► …                        another salt has another root
"""

from __future__ import annotations

import secrets
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256

from kvtide_sizing.formats import LayerFormat
from kvtide_sizing.memory.kv import KvLayout

# Where chunks begin, and so where a hit may end: the CPU's kernels attend in tiles of so many tokens (TILE in
# kernels/kvtide_kernels/cpu/src/layout.h), and sum the same numbers in the same order wherever a chunk begins at one.
ALIGNED_TOKENS = 64


class BlockChain:
    """The digests of a sequence's full blocks, each made when it is first asked for and kept: tokens only come behind.

    token_ids: tokens [start, end) of the sequence
    """

    def __init__(self, root: bytes, block_size: int, token_ids: Callable[[int, int], Sequence[int]]) -> None:
        self._root = root
        self._block_size = block_size
        self._token_ids = token_ids
        self._blocks: list[tuple[bytes, bytes]] = []

    def __getitem__(self, number: int) -> tuple[bytes, bytes]:
        """A block's digest, over its tokens and all before them, and its tokens as bytes."""
        if number >= len(self._blocks):
            self._extend(number + 1)
        return self._blocks[number]

    def _extend(self, end: int) -> None:
        start, size = len(self._blocks), self._block_size
        tokens = array("i", self._token_ids(start * size, end * size)).tobytes()
        digest, wide = (self._blocks[-1][0] if self._blocks else self._root), 4 * size
        for at in range(0, len(tokens), wide):
            own = tokens[at : at + wide]
            digest = sha256(digest + own).digest()
            self._blocks.append((digest, own))


@dataclass(eq=False, slots=True)
class PrefixNode:
    """One block's tokens behind those of its parent.

    blocks:  of each table, the block that holds them; None where there is none (any more)
    users:   its blocks, its children, and the sequences that are longer: it is forgotten when there are none
    """

    digest: bytes
    tokens: bytes
    parent: PrefixNode | None
    blocks: list[int | None]
    users: int = 0


class PrefixCache:
    """Sealed blocks: full ones whose tokens are known, which nobody writes to again. All operations are O(1) a block.

    formats:         each layer's; blocks of others are never found
    aligned_tokens:  hits end at multiples of it, or of a block where that is longer; a multiple of a block

    A digest is a chain of SHA-256 over the tokens, from a root that a client cannot know (32 random bytes of this
    process) and that each salt has for itself: who does not send a tenant's salt does not find its prompts, and cannot
    measure whether they are there. Tokens are compared on every hit as well, of the whole prefix.
    """

    def __init__(
        self, layout: KvLayout, *, formats: Sequence[LayerFormat] = (), aligned_tokens: int = ALIGNED_TOKENS
    ) -> None:
        self._layout = layout
        stored = ",".join(f"{each.key.name}/{each.value.name}" for each in formats)
        self._secret = secrets.token_bytes(32) + stored.encode() + b"\0"
        self.aligned_tokens = max(aligned_tokens, layout.block_size)
        self._hit_blocks = self.aligned_tokens // layout.block_size
        self._nodes: dict[bytes, PrefixNode] = {}
        self._homes: dict[int, tuple[PrefixNode, int]] = {}
        self._unused: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        """Prefixes that something is known of: of blocks that are there, and of sequences that go on behind them."""
        return len(self._nodes)

    @property
    def unused_blocks(self) -> int:
        """Sealed blocks that no sequence holds."""
        return len(self._unused)

    def chain(self, salt: str, token_ids: Callable[[int, int], Sequence[int]]) -> BlockChain:
        """The chain of a sequence under a salt; token_ids gives its tokens [start, end)."""
        root = sha256(self._secret + salt.encode()).digest()
        return BlockChain(root, self._layout.block_size, token_ids)

    def find(self, chain: BlockChain, num_tokens: int) -> list[PrefixNode]:
        """The longest prefix that every table has all blocks of that the token behind it attends to.

        Of num_tokens two are left to compute at least: logits come from the last one, and a token alone would be a
        decode, which sums in another order. Where the layout keeps recent tokens in BF16 beside, which nobody shares,
        it is twice as many as these: an answer begins with all of them, each computed with all of its own.
        """
        size, step = self._layout.block_size, self._hit_blocks
        tables = self._layout.tables
        whole = any(table.window is None for table in tables)
        runs = [0] * len(tables)  # how many blocks up to here each table has without a gap
        nodes: list[PrefixNode] = []
        found = 0
        left = max(2, 2 * self._layout.recent)
        for number in range(max(0, num_tokens - left) // (size * step) * step):
            digest, tokens = chain[number]
            node = self._nodes.get(digest)
            if node is None or node.tokens != tokens or node.parent is not (nodes[-1] if nodes else None):
                break
            nodes.append(node)
            end = number + 1
            runs = [0 if block is None else run + 1 for run, block in zip(runs, node.blocks, strict=True)]
            needed = [end - table.first_needed(end * size) // size for table in tables] if end % step == 0 else ()
            if needed and all(run >= least for run, least in zip(runs, needed, strict=True)):
                found = end
            if whole and any(run < end for run, table in zip(runs, tables, strict=True) if table.window is None):
                break
        return nodes[:found]

    def seal(
        self, chain: BlockChain, number: int, parent: PrefixNode | None, blocks: Sequence[int]
    ) -> PrefixNode | None:
        """Note what a sequence's full block of this number holds, in each table; the sequence is a user of the node.

        A block whose tokens another one holds already stays its sequence's own. None where the digest is of other
        tokens: nothing behind them can be sealed.
        """
        digest, tokens = chain[number]
        node = self._nodes.get(digest)
        if node is None:
            node = self._nodes[digest] = PrefixNode(digest, tokens, parent, [None] * len(blocks))
            if parent is not None:
                parent.users += 1
        elif node.tokens != tokens or node.parent is not parent:
            return None
        for table, block in enumerate(blocks):
            if node.blocks[table] is None:
                node.blocks[table] = block
                self._homes[block] = node, table
                node.users += 1
        node.users += 1
        return node

    def is_sealed(self, block: int) -> bool:
        """Whether the block's content may be found."""
        return block in self._homes

    def keep(self, block: int) -> None:
        """Note that no sequence holds a sealed block any more: from now on it may be taken, after all kept before."""
        self._unused[block] = None

    def revive(self, block: int) -> None:
        """Note that a sequence holds a block again that was kept."""
        del self._unused[block]

    def evict(self) -> int:
        """The block that was kept first, which is sealed no longer."""
        block, _ = self._unused.popitem(last=False)
        self.unseal(block)
        return block

    def unseal(self, block: int) -> None:
        """Forget what a block holds."""
        node, table = self._homes.pop(block)
        node.blocks[table] = None
        self.leave(node)

    def blocks_of(self, table: int) -> list[int]:
        """That table's sealed blocks."""
        return [block for block, (_, home) in self._homes.items() if home == table]

    def clear(self, layout: KvLayout) -> None:
        """Forget everything; from now on blocks are that layout's. No sequence may hold a sealed block."""
        assert len(self._unused) == len(self._homes), "a sequence holds a sealed block"
        while self._unused:
            self.evict()
        self._layout = layout

    @staticmethod
    def join(nodes: Sequence[PrefixNode]) -> None:
        """One more sequence is behind these nodes."""
        for node in nodes:
            node.users += 1

    def leave(self, node: PrefixNode) -> None:
        """One user of the node less."""
        left: PrefixNode | None = node
        while left is not None:
            left.users -= 1
            if left.users:
                return
            del self._nodes[left.digest]
            left = left.parent
