"""The KV pool: the memory of all blocks of all layers."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvtide_sizing.formats import BF16
from kvtide_sizing.memory.kv import KvLayout


@dataclass(frozen=True)
class KVPool:
    """Keys and values of all layers, cut into blocks of one size that any block table may hold.

        storage [slots, 2, num_blocks, kv_heads, block_size, head_dim]     one allocation
                   │    └ 0 keys, 1 values
                   └ a table's layers have a slot each; a layer of another table has the same, in other blocks

        layers   w w f w w f       slot 0: 2, 0, 3      block 7, if a table of (0, 1) holds it,
        tables   (2, 5) (0, 1)     slot 1: 5, 1, 4      has layer 0 in slot 0 and layer 1 in slot 1
                 (3, 4)

    keys[layer], values[layer]:  views [num_blocks, kv_heads, block_size, head_dim] of the layer's slot
    tables[layer]:               which of the layout's tables serves the layer

    A head's tokens lie side by side within a block ("bhsd"), so that attention reads whole rows of head_dim.
    """

    layout: KvLayout
    storage: torch.Tensor
    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]
    tables: tuple[int, ...]

    @classmethod
    def allocate(
        cls,
        layout: KvLayout,
        *,
        num_blocks: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> KVPool:
        """Take the pool's memory and write to every page of it: no later step can fail for lack of it.

        num_blocks: in the layout's sense, of all tables together

        Raises ValueError where blocks of these heads have another size than the layout's; RuntimeError (torch's own,
        OutOfMemoryError on a GPU) where the device does not have the memory.
        """
        slots = len(layout.tables[0].layers)
        block_bytes = slots * 2 * kv_heads * layout.block_size * head_dim * dtype.itemsize
        # The layout counts what the formats' table says; a pool of float32 is an instrument, and takes twice of that.
        planned_bytes = layout.block_bytes * 8 * dtype.itemsize // BF16.bits
        if block_bytes != planned_bytes:
            raise ValueError(
                f"{num_blocks} blocks of {layout.block_size} tokens, {slots} layers, {kv_heads} KV heads of {head_dim} "
                f"in {dtype} take {num_blocks * block_bytes} bytes, but the layout plans {num_blocks * planned_bytes}"
            )
        storage = torch.empty(
            (slots, 2, num_blocks, kv_heads, layout.block_size, head_dim), dtype=dtype, device=device
        ).zero_()
        places = sorted(
            (layer, table, slot)
            for table, of_layers in enumerate(layout.tables)
            for slot, layer in enumerate(of_layers.layers)
        )
        return cls(
            layout,
            storage,
            keys=tuple(storage[slot, 0] for _, _, slot in places),
            values=tuple(storage[slot, 1] for _, _, slot in places),
            tables=tuple(table for _, table, _ in places),
        )

    @property
    def num_blocks(self) -> int:
        """Blocks in the pool, whichever table holds them."""
        return self.storage.shape[2]

    @property
    def kv_heads(self) -> int:
        """KV heads of each layer."""
        return self.storage.shape[3]

    @property
    def head_dim(self) -> int:
        """Elements of one head of one token."""
        return self.storage.shape[5]

    @property
    def nbytes(self) -> int:
        """Bytes of the whole pool."""
        return self.storage.nbytes
