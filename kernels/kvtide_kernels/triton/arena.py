"""An arena: the keys, or the values, of one layer slot in all blocks of the pool."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvtide_sizing.formats import BF16, INT4, INT8, VectorFormat

SERVED_FORMATS = (BF16, INT8, INT4)
SERVED_HEAD_DIMS = (64, 80, 96, 112, 128, 192, 256)
SERVED_BLOCK_SIZES = (16, 32, 64, 128, 256)

# What a kernel may take for granted of every run of bytes, so that it loads 128 bits at a time.
ALIGNMENT_BYTES = 16


@dataclass(frozen=True)
class ArenaShape:
    """How one side (keys or values) of one layer lies in memory.

        uint8 [num_blocks, kv_heads, head_bytes]        one (block, head), contiguous:
            data   [block_size, data_bytes]             token by token
            scale  [block_size] float16                 INT8, INT4
            zero   [block_size] float16                 INT4

    Raises ValueError for a format, head size or block size that no kernel serves.
    """

    format: VectorFormat
    kv_heads: int
    head_dim: int
    block_size: int

    def __post_init__(self) -> None:
        served: list[tuple[str, object, tuple[object, ...]]] = [
            ("format", self.format.name, tuple(one.name for one in SERVED_FORMATS)),
            ("head size", self.head_dim, SERVED_HEAD_DIMS),
            ("block size", self.block_size, SERVED_BLOCK_SIZES),
        ]
        for what, asked, serves in served:
            if asked not in serves:
                raise ValueError(
                    f"the Triton kernels serve no {what} {asked}; they serve {', '.join(str(one) for one in serves)}"
                )

    @property
    def bits(self) -> int:
        """Of one element."""
        return self.format.bits

    @property
    def data_bytes(self) -> int:
        """Of one token's packed elements."""
        return self.format.vector_bytes(self.head_dim) - self.format.scale_bytes - self.format.zero_bytes

    @property
    def head_bytes(self) -> int:
        """Of one head of one block."""
        return self.block_size * self.format.vector_bytes(self.head_dim)

    @property
    def block_bytes(self) -> int:
        """Of one block, all heads."""
        return self.kv_heads * self.head_bytes

    @property
    def rotation(self) -> int:
        """Elements that are rotated together before they are packed, 0 where the format does not rotate.

        The largest power of two that divides head_dim: 96 is three runs of 32.
        """
        return self.head_dim & -self.head_dim if self.format == INT4 else 0

    def view(self, storage: torch.Tensor) -> Arena:
        """An arena over the bytes of a contiguous tensor, as many blocks as it holds."""
        flat = storage.view(-1).view(torch.uint8)
        num_blocks = flat.numel() // self.block_bytes
        return Arena(self, flat[: num_blocks * self.block_bytes].view(num_blocks, self.kv_heads, self.head_bytes))


@dataclass(frozen=True)
class Arena:
    """An arena's shape, and its bytes [num_blocks, kv_heads, head_bytes].

    Raises ValueError where the bytes have another shape or dtype, are not contiguous, or begin off a 16 byte border.
    """

    shape: ArenaShape
    storage: torch.Tensor

    def __post_init__(self) -> None:
        expected = (self.storage.shape[0], self.shape.kv_heads, self.shape.head_bytes)
        if self.storage.dtype != torch.uint8 or tuple(self.storage.shape) != expected:
            raise ValueError(
                f"an arena of {self.shape} is uint8 {list(expected)}, "
                f"but got {self.storage.dtype} {list(self.storage.shape)}"
            )
        if not self.storage.is_contiguous() or self.storage.data_ptr() % ALIGNMENT_BYTES:
            raise ValueError(f"an arena's bytes are contiguous from a border of {ALIGNMENT_BYTES} bytes on")

    @property
    def num_blocks(self) -> int:
        """Blocks in the arena."""
        return self.storage.shape[0]
