"""An arena: the keys, or the values, of one layer in all blocks, as the kernels address them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvtide_kernels.codec import data_bytes, is_rotated
from kvtide_sizing.formats import VectorFormat

# What a kernel may take for granted of every run of bytes, so that it loads 128 bits at a time.
ALIGNMENT_BYTES = 16


def rotation(stored: VectorFormat, head_dim: int) -> int:
    """Elements that are rotated together before they are packed, 0 where the format does not rotate.

    The largest power of two that divides head_dim: 96 is three runs of 32.
    """
    return head_dim & -head_dim if is_rotated(stored) else 0


@dataclass(frozen=True)
class Arena:
    """One side of a layer: its format, and its bytes.

    storage: uint8 [num_blocks, kv_heads, bytes]; of one (block, head), side by side as in `BlockView`

        data   [block_size, data_bytes]             token by token
        scale  [block_size] float16                 INT8, INT4
        zero   [block_size] float16                 INT4

    Heads lie head_stride bytes apart, blocks kv_heads times that. Raises ValueError where they do not, where the bytes
    have another shape or dtype, or begin off a 16 byte border.
    """

    format: VectorFormat
    head_dim: int
    block_size: int
    storage: torch.Tensor

    def __post_init__(self) -> None:
        storage = self.storage
        if storage.dtype != torch.uint8 or storage.dim() != 3 or storage.shape[2] != self.head_bytes:
            raise ValueError(
                f"blocks of {self.block_size} vectors of {self.head_dim} in {self.format.name} are uint8 "
                f"[blocks, heads, {self.head_bytes}], but got {storage.dtype} {list(storage.shape)}"
            )
        of_block, of_head, of_byte = storage.stride()
        if of_byte != 1 or of_block != self.kv_heads * of_head or (of_head | storage.data_ptr()) % ALIGNMENT_BYTES:
            raise ValueError(
                f"heads lie side by side from borders of {ALIGNMENT_BYTES} bytes on, but the strides of "
                f"{list(storage.shape)} are {list(storage.stride())}, from {storage.data_ptr() % ALIGNMENT_BYTES} "
                f"behind a border on"
            )

    @property
    def num_blocks(self) -> int:
        """Blocks in the arena."""
        return self.storage.shape[0]

    @property
    def kv_heads(self) -> int:
        """Heads of a block."""
        return self.storage.shape[1]

    @property
    def data_bytes(self) -> int:
        """Of one token's packed elements."""
        return data_bytes(self.format, self.head_dim)

    @property
    def head_bytes(self) -> int:
        """Of one head of one block."""
        return self.block_size * self.format.vector_bytes(self.head_dim)

    @property
    def head_stride(self) -> int:
        """Bytes from a head to the next one: head_bytes, or more where the layer's slot is wider."""
        return self.storage.stride(1)

    @property
    def rotation(self) -> int:
        """As `rotation`."""
        return rotation(self.format, self.head_dim)
