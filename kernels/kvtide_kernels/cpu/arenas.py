"""A layer's keys and values in memory, as the CPU's kernels take them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvtide_kernels.cpu.library import Side
from kvtide_sizing.formats import BF16, INT4, INT8, LayerFormat, VectorFormat

# As `Format` in src/layout.h.
_CODES = {BF16: 0, INT8: 1, INT4: 2}

SERVED_HEAD_DIMS = (64, 80, 96, 112, 128, 192, 256)
SERVED_BLOCK_SIZES = (16, 32, 64, 128, 256)


@dataclass(frozen=True)
class LayerArenas:
    """One layer's blocks: key and value, each uint8 [num_blocks, kv_heads, bytes of a head in a block].

        data [block_size, vector]   scale [block_size] float16   zero [block_size] float16     the last two, where any

    The last dimension is dense; blocks and heads may be any stride apart. sinks: float32 [query_heads], or none.
    """

    format: LayerFormat
    key: torch.Tensor
    value: torch.Tensor
    head_dim: int
    block_size: int
    sinks: torch.Tensor | None = None

    def __post_init__(self) -> None:
        """Raises ValueError for what the kernels do not serve, and for arenas of another size than the formats'."""
        for side, tensor, stored in (("keys", self.key, self.format.key), ("values", self.value, self.format.value)):
            check_served(stored, self.head_dim, self.block_size)
            wanted = self.block_size * stored.vector_bytes(self.head_dim)
            if tensor.dtype != torch.uint8 or tensor.dim() != 3 or tensor.shape[2] != wanted or tensor.stride(2) != 1:
                raise ValueError(
                    f"{side} of {stored.name}, blocks of {self.block_size} and heads of {self.head_dim} need a uint8 "
                    f"tensor [blocks, heads, {wanted}], but got {tensor.dtype} {list(tensor.shape)}"
                )
        if self.key.shape[:2] != self.value.shape[:2]:
            raise ValueError(
                f"{list(self.key.shape[:2])} blocks and heads of keys, {list(self.value.shape[:2])} of values"
            )

    @property
    def kv_heads(self) -> int:
        """KV heads of the layer."""
        return self.key.shape[1]

    def side(self, tensor: torch.Tensor, stored: VectorFormat) -> Side:
        """The structure for one of the two arenas."""
        return side_of(tensor, stored, self.head_dim)


def side_of(tensor: torch.Tensor, stored: VectorFormat, head_dim: int) -> Side:
    """The structure for an arena uint8 [num_blocks, kv_heads, bytes]."""
    return Side(tensor.data_ptr(), tensor.stride(0), tensor.stride(1), _CODES[stored], head_dim)


def check_served(stored: VectorFormat, head_dim: int, block_size: int) -> None:
    """Raise ValueError for a format, head size or block size that the kernels do not serve."""
    if stored not in _CODES:
        raise ValueError(f"the CPU has no kernels for {stored.name}; there are {', '.join(one.name for one in _CODES)}")
    if head_dim not in SERVED_HEAD_DIMS:
        raise ValueError(f"the CPU has no kernels for heads of {head_dim}; there are {SERVED_HEAD_DIMS}")
    if block_size not in SERVED_BLOCK_SIZES:
        raise ValueError(f"the CPU has no kernels for blocks of {block_size} tokens; there are {SERVED_BLOCK_SIZES}")
