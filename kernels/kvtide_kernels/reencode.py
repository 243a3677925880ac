"""A pool that becomes one of smaller formats in its own memory, with the ids of its blocks as they were.

Two slots, blocks 0 to 3; K and V are a slot's arenas. A smaller format has more blocks, so that arenas begin elsewhere:

    before   K0 K1 K2 K3  V0 V1 V2 V3 | K0 K1 K2 K3  V0 V1 V2 V3          4 blocks of BF16
    after    k0k1k2k3........ v0v1v2v3........ | k0k1k2k3........ v0…     8 blocks of half as many bytes

Blocks keep their order, none gets longer, and some lie further right than before, where their slot's keys take a larger
part of it. Nothing is written over what has not been read:

- first, from the last one to the first, those that move right: what each is written to lies behind its old place, and
  before the new place of the next one, which ends before the old place of the next one that does not move right;
- then, from the first one to the last, those that do not: each is written to its old place or before it, and behind the
  new place of the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from kvtide_kernels.block_view import BlockView
from kvtide_kernels.codec import Packed, decode, encode
from kvtide_kernels.key_basis import KeyBasis
from kvtide_kernels.pool import KVPool
from kvtide_sizing.formats import BF16, INT4, INT8, LayerFormat, VectorFormat
from kvtide_sizing.memory.kv import KvLayout

# What a side may become: fewer bits, of vectors that were rounded once at most.
_BECOMES = {BF16: (BF16, INT8, INT4), INT8: (INT8, INT4), INT4: (INT4,)}

# Bytes of blocks that are set aside at a time. Decoding them takes some ten times as much, less than a step.
_STAGED_BYTES = 1 << 20


@dataclass(frozen=True)
class UsedBlocks:
    """One table's blocks that hold something: tokens, or a sequence's recent ones in BF16."""

    tokens: Sequence[int]
    recent: Sequence[int] = ()


def check_reencodable(
    old: KvLayout, old_formats: Sequence[LayerFormat], new: KvLayout, new_formats: Sequence[LayerFormat]
) -> None:
    """Raise ValueError where blocks of one layout cannot become the other's where they lie: other tables, other block
    sizes, or a layer with a side that would be decoded from fewer bits than it gets."""
    if (old.tables, old.block_size) != (new.tables, new.block_size):
        raise ValueError("the formats' layers share blocks in another way")
    for layer, (before, after) in enumerate(zip(old_formats, new_formats, strict=True)):
        for side, one, other in (("keys", before.key, after.key), ("values", before.value, after.value)):
            if other not in _BECOMES.get(one, ()):
                raise ValueError(f"{side} of layer {layer} are {one.name}, of which no {other.name} can be made")


def reencode(
    pool: KVPool,
    layout: KvLayout,
    formats: Sequence[LayerFormat],
    *,
    num_blocks: int,
    used: Sequence[UsedBlocks],
    bases: Mapping[int, KeyBasis],
    tick: Callable[[], None] = lambda: None,
) -> KVPool:
    """The pool with each layer in its new format, in the same memory; the old pool is none any more.

    num_blocks:  as many as before, or more, of the layout's
    used:        of each table; what other blocks hold is lost
    bases:       of layers: their keys are put into it where they had no basis before and have one now
    tick:        called after each MiB or so

    Raises ValueError as `check_reencodable`, before anything is written.
    """
    before = [layer.format for layer in pool.layers]
    check_reencodable(pool.layout, before, layout, formats)
    if num_blocks < pool.num_blocks:
        raise ValueError(f"blocks keep their ids: {pool.num_blocks} do not become {num_blocks}")
    smaller = KVPool.over(
        pool.storage, layout, formats, num_blocks=num_blocks, kv_heads=pool.kv_heads, head_dim=pool.head_dim
    )
    moves = list(_moves(pool, smaller, used))
    for move in (
        *(move for move in reversed(moves) if move.goes_right),
        *(move for move in moves if not move.goes_right),
    ):
        move.run(bases)
        tick()
    return smaller


@dataclass(frozen=True)
class _Part:
    """Of a move, one table's blocks of tokens or of recent tokens: their places among those moved."""

    layer: int
    recent: bool
    places: torch.Tensor


@dataclass(frozen=True)
class _Move:
    """Some blocks of one arena, in ascending order of their ids: from one arena to the other."""

    old: KVPool
    new: KVPool
    is_key: bool
    source: torch.Tensor
    target: torch.Tensor
    ids: torch.Tensor
    parts: Sequence[_Part]

    @property
    def goes_right(self) -> bool:
        """Whether the first block's new place is behind its old one."""
        first = int(self.ids[0])
        return self.target[first].data_ptr() > self.source[first].data_ptr()

    def run(self, bases: Mapping[int, KeyBasis]) -> None:
        staged = self.source[self.ids]
        for part in self.parts:
            self._write(staged[part.places], self.ids[part.places], part, bases)

    def _write(self, blocks: torch.Tensor, ids: torch.Tensor, part: _Part, bases: Mapping[int, KeyBasis]) -> None:
        old, new = self.old.layers[part.layer].format, self.new.layers[part.layer].format
        one, other = (old.key, new.key) if self.is_key else (old.value, new.value)
        size, dim = self.old.layout.block_size, self.old.head_dim
        if part.recent:
            recent = self.old.layout.recent_per_block * BF16.vector_bytes(dim)
            self.target[ids, :, :recent] = blocks[..., :recent]
            return
        held = blocks[..., : size * one.vector_bytes(dim)]
        if one is not other:
            turned = self.is_key and new.has_key_basis and not old.has_key_basis
            held = _converted(held, one, other, size, dim, bases.get(part.layer) if turned else None)
        self.target[ids, :, : size * other.vector_bytes(dim)] = held


def _converted(
    blocks: torch.Tensor, old: VectorFormat, new: VectorFormat, size: int, dim: int, basis: KeyBasis | None
) -> torch.Tensor:
    """Blocks uint8 [blocks, kv_heads, bytes] in another format. Vectors that nobody wrote may be anything, and stay so:
    none touches another."""
    view = BlockView.of(blocks, old, size, dim)
    vectors = decode(old, Packed(view.data, view.scale, view.zero), dim)
    if basis is not None:
        heads = vectors.shape[1]
        turned = basis.keys(vectors.transpose(1, 2).reshape(-1, heads, dim))
        vectors = turned.view(len(blocks), size, heads, dim).transpose(1, 2)
    packed = encode(new, vectors)
    made = blocks.new_empty(*blocks.shape[:2], size * new.vector_bytes(dim))
    into = BlockView.of(made, new, size, dim)
    for side, own in ((into.data, packed.data), (into.scale, packed.scale), (into.zero, packed.zero)):
        if side is not None and own is not None:
            side.copy_(own)
    return made


def _moves(old: KVPool, new: KVPool, used: Sequence[UsedBlocks]) -> Iterator[_Move]:
    """All moves, in the order of what they read, which is the order of what they write."""
    owners = {block: (table, False) for table, of_table in enumerate(used) for block in of_table.tokens}
    owners |= {block: (table, True) for table, of_table in enumerate(used) for block in of_table.recent}
    ids = sorted(owners)
    slots = list(zip(*(table.layers for table in old.layout.tables), strict=True))
    for number, (source, target) in enumerate(zip(old.arenas(), new.arenas(), strict=True)):
        slot = slots[number // 2]
        at_once = max(1, _STAGED_BYTES // (source.shape[1] * source.shape[2]))
        for start in range(0, len(ids), at_once):
            moved = ids[start : start + at_once]
            places: dict[tuple[int, bool], list[int]] = {}
            for place, block in enumerate(moved):
                places.setdefault(owners[block], []).append(place)
            parts = [
                _Part(slot[table], recent, torch.tensor(own, device=source.device))
                for (table, recent), own in places.items()
            ]
            yield _Move(old, new, number % 2 == 0, source, target, torch.tensor(moved, device=source.device), parts)
