"""Where the vectors of a block lie."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvtide_kernels.codec import Packed, check_served, data_bytes
from kvtide_sizing.formats import VectorFormat
from kvtide_sizing.memory.kv import KvLayout


@dataclass(frozen=True)
class BlockView:
    """One layer's keys, or its values, in all blocks: views of an arena uint8 [num_blocks, kv_heads, bytes].

    Of one head in one block, one after another:

        data   [block_size, bytes]       token by token
        scale  [block_size] float16      where the format has one
        zero   [block_size] float16      where the format has one
    """

    data: torch.Tensor
    scale: torch.Tensor | None
    zero: torch.Tensor | None

    @classmethod
    def of(cls, arena: torch.Tensor, stored: VectorFormat, block_size: int, dim: int) -> BlockView:
        """The views of an arena for vectors of dim elements. Raises ValueError where it has another size, and for a
        format without a codec.
        """
        check_served(stored)
        wanted = block_size * stored.vector_bytes(dim)
        if arena.dtype != torch.uint8 or arena.dim() != 3 or arena.shape[2] != wanted:
            raise ValueError(
                f"blocks of {block_size} vectors of {dim} in {stored.name} need uint8 [blocks, heads, {wanted}], "
                f"but the arena is {arena.dtype} {list(arena.shape)}"
            )
        of_vector = data_bytes(stored, dim)
        of_data, of_scale = block_size * of_vector, block_size * stored.scale_bytes
        return cls(
            arena[..., :of_data].unfold(2, of_vector, of_vector),
            arena[..., of_data : of_data + of_scale].view(torch.float16) if stored.scale_bytes else None,
            arena[..., of_data + of_scale :].view(torch.float16) if stored.zero_bytes else None,
        )

    def write(self, blocks: torch.Tensor, slots: torch.Tensor, packed: Packed) -> None:
        """Put vectors [tokens, kv_heads, ...] into slots [tokens] of blocks [tokens]."""
        for side, own in ((self.data, packed.data), (self.scale, packed.scale), (self.zero, packed.zero)):
            if side is not None and own is not None:
                side[blocks, :, slots] = own

    def read(self, blocks: torch.Tensor, slots: torch.Tensor) -> Packed:
        """The vectors [tokens, kv_heads, ...] in slots [tokens] of blocks [tokens]."""
        return Packed(
            self.data[blocks, :, slots],
            None if self.scale is None else self.scale[blocks, :, slots],
            None if self.zero is None else self.zero[blocks, :, slots],
        )


@dataclass(frozen=True)
class RecentView:
    """What the same arena has in blocks that hold recent tokens, of any format beside: BF16, one head after another.

    vectors: bfloat16 [num_blocks, kv_heads, recent_per_block, dim] from the beginning of each head's bytes
    """

    vectors: torch.Tensor

    @classmethod
    def of(cls, arena: torch.Tensor, layout: KvLayout, dim: int) -> RecentView:
        """The views of an arena uint8 [num_blocks, kv_heads, bytes] for vectors of dim elements."""
        held = arena[..., : layout.recent_per_block * 2 * dim].view(torch.bfloat16)
        return cls(held.unfold(2, dim, dim))
