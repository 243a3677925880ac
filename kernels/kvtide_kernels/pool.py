"""The KV pool: the memory of all blocks of all layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from kvtide_kernels.codec import check_served
from kvtide_kernels.huge_pages import in_huge_pages
from kvtide_sizing.formats import LayerFormat, VectorFormat
from kvtide_sizing.memory.kv import KvLayout

# What is copied lies beside the pool for a moment, one side of one slot at a time: less than a step's activations.
_COPIED_AT_ONCE = 64


@dataclass(frozen=True)
class StoredLayer:
    """One layer's keys and values in all blocks.

    key, value:  uint8 [num_blocks, kv_heads, block_size · vector bytes], as `BlockView` reads them; heads and blocks
                 may be further apart than that
    table:       which of the layout's tables serves it
    """

    format: LayerFormat
    key: torch.Tensor
    value: torch.Tensor
    table: int


@dataclass(frozen=True)
class KVPool:
    """Keys and values of all layers, cut into blocks of one size that any block table may hold.

        slots[slot]      two arenas, of keys and of values: uint8 [num_blocks, kv_heads, bytes], side by side in storage
        layers[layer]    what its format takes of its slot's

        layers   w w f w w f       slot 0: 2, 0, 1      block 7, if a table of (0, 3) holds it,
        tables   (2, 5) (0, 3)     slot 1: 5, 3, 4      has layer 0 in slot 0 and layer 3 in slot 1
                 (1, 4)

    A slot's sides are as wide as in the widest layer that has the slot. A head's tokens lie side by side in a block.
    """

    layout: KvLayout
    head_dim: int
    storage: torch.Tensor
    layers: tuple[StoredLayer, ...]

    @classmethod
    def allocate(
        cls,
        layout: KvLayout,
        formats: Sequence[LayerFormat],
        *,
        num_blocks: int,
        kv_heads: int,
        head_dim: int,
        device: torch.device,
    ) -> KVPool:
        """Take the pool's memory and write to every page of it: no later step can fail for lack of it.

        formats: each layer's; num_blocks: in the layout's sense, of all tables together

        Raises ValueError where blocks of these heads and formats have another size than the layout's, and for a format
        without a codec; RuntimeError (torch's own, OutOfMemoryError on a GPU) where the device does not have the
        memory.
        """
        storage = torch.empty(num_blocks * layout.block_bytes, dtype=torch.uint8, device=device)
        if device.type == "cpu":
            in_huge_pages(storage)
        pool = cls.over(storage, layout, formats, num_blocks=num_blocks, kv_heads=kv_heads, head_dim=head_dim)
        storage.zero_()
        return pool

    @classmethod
    def over(
        cls,
        storage: torch.Tensor,
        layout: KvLayout,
        formats: Sequence[LayerFormat],
        *,
        num_blocks: int,
        kv_heads: int,
        head_dim: int,
    ) -> KVPool:
        """A pool in memory that is there, uint8 of as many bytes or more, whatever it holds. The rest as `allocate`."""
        slots = list(zip(*(table.layers for table in layout.tables), strict=True))
        widths = [
            max(layout.block_size * side(formats[layer]).vector_bytes(head_dim) for layer in slot)
            for slot in slots
            for side in _SIDES
        ]
        block_bytes = kv_heads * sum(widths)
        if block_bytes != layout.block_bytes or num_blocks * block_bytes > storage.nbytes:
            raise ValueError(
                f"{num_blocks} blocks of {layout.block_size} tokens, {len(slots)} layers and {kv_heads} KV heads of "
                f"{head_dim} take {num_blocks * block_bytes} bytes, but the layout plans "
                f"{num_blocks * layout.block_bytes}, and there are {storage.nbytes}"
            )
        arenas = iter(_cut(storage[: num_blocks * block_bytes], num_blocks, kv_heads, widths))
        layers: dict[int, StoredLayer] = {}
        for slot in slots:
            keys, values = next(arenas), next(arenas)
            for table, layer in enumerate(slot):
                stored = formats[layer]
                key, value = (
                    arena[..., : layout.block_size * side(stored).vector_bytes(head_dim)]
                    for arena, side in zip((keys, values), _SIDES, strict=True)
                )
                layers[layer] = StoredLayer(stored, key, value, table)
        return cls(layout, head_dim, storage, tuple(layers[layer] for layer in sorted(layers)))

    @property
    def num_blocks(self) -> int:
        """Blocks in the pool, whichever table holds them."""
        return self.layers[0].key.shape[0]

    @property
    def kv_heads(self) -> int:
        """KV heads of each layer."""
        return self.layers[0].key.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of the whole pool."""
        return self.storage.nbytes

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks whole, in all their slots and whatever table holds them, from the first of a pair to the second.

        No two pairs may have the same second block. All first ones are read before any second one is written, of
        `_COPIED_AT_ONCE` pairs at a time: so much is taken beside the pool for a moment.
        """
        for start in range(0, len(pairs), _COPIED_AT_ONCE):
            source, target = torch.tensor(pairs[start : start + _COPIED_AT_ONCE], device=self.storage.device).unbind(1)
            for arena in self.arenas():
                arena.index_copy_(0, target, arena.index_select(0, source))

    def arenas(self) -> Iterator[torch.Tensor]:
        """Of each slot the keys' arena and the values', as they follow one another in storage: uint8 [num_blocks,
        kv_heads, bytes of its widest layer]."""
        for slot in zip(*(table.layers for table in self.layout.tables), strict=True):
            layers = [self.layers[layer] for layer in slot]
            yield max((layer.key for layer in layers), key=lambda arena: arena.shape[2])
            yield max((layer.value for layer in layers), key=lambda arena: arena.shape[2])


def _key(stored: LayerFormat) -> VectorFormat:
    check_served(stored.key)
    return stored.key


def _value(stored: LayerFormat) -> VectorFormat:
    check_served(stored.value)
    return stored.value


_SIDES = (_key, _value)


def _cut(storage: torch.Tensor, num_blocks: int, kv_heads: int, widths: Sequence[int]) -> Iterator[torch.Tensor]:
    """Arenas uint8 [num_blocks, kv_heads, width], one after another."""
    for arena, width in zip(storage.split([num_blocks * kv_heads * width for width in widths]), widths, strict=True):
        yield arena.view(num_blocks, kv_heads, width)
