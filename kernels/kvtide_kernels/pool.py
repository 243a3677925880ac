"""The KV pool: the memory of all blocks of all layers."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class KVPool:
    """Keys and values of all layers, cut into blocks; one block id is the same block in every layer.

        storage [layers, 2, num_blocks, kv_heads, block_size, head_dim]     one allocation
                    │    └ 0 keys, 1 values
                    └ keys[layer], values[layer]: views [num_blocks, kv_heads, block_size, head_dim]

    A head's tokens lie side by side within a block ("bhsd"), so that attention reads whole rows of head_dim.
    """

    storage: torch.Tensor
    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]

    @classmethod
    def allocate(
        cls,
        *,
        num_layers: int,
        num_blocks: int,
        kv_heads: int,
        block_size: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> KVPool:
        """Take the pool's memory and write to every page of it: no later step can fail for lack of it.

        Raises RuntimeError (torch's own, OutOfMemoryError on a GPU) where the device does not have it.
        """
        shape = (num_layers, 2, num_blocks, kv_heads, block_size, head_dim)
        storage = torch.empty(shape, dtype=dtype, device=device)
        storage.zero_()
        return cls(
            storage,
            keys=tuple(storage[layer, 0] for layer in range(num_layers)),
            values=tuple(storage[layer, 1] for layer in range(num_layers)),
        )

    @property
    def num_blocks(self) -> int:
        """Blocks in the pool."""
        return self.storage.shape[2]

    @property
    def kv_heads(self) -> int:
        """KV heads of each layer."""
        return self.storage.shape[3]

    @property
    def block_size(self) -> int:
        """Tokens in one block."""
        return self.storage.shape[4]

    @property
    def head_dim(self) -> int:
        """Elements of one head of one token."""
        return self.storage.shape[5]

    @property
    def nbytes(self) -> int:
        """Bytes of the whole pool."""
        return self.storage.nbytes
