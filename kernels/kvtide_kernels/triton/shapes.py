"""How large a program of each kernel is: rows, tokens of a tile, warps and stages."""

from __future__ import annotations

from dataclasses import dataclass

from kvtide_kernels.triton.arena import ArenaShape

# Items of a split decode begin at multiples of this, whatever a layer's tile is.
SPLIT_TOKENS = 256


def padded(dim: int) -> int:
    """The power of two that a head is computed in."""
    return 1 << (dim - 1).bit_length()


@dataclass(frozen=True)
class Launch:
    """rows: of queries (heads, or tokens and heads) in a program's dots; tile: tokens of K and V in each."""

    rows: int
    tile: int
    warps: int
    stages: int


def decode_launch(group: int, key: ArenaShape, value: ArenaShape) -> Launch:
    """The decode kernel's size for query heads in groups of so many.

    16 rows are the least that a tensor core takes. A tile is of 64 tokens whatever the block is, so that a block of 16
    does not make a loop of small loads (four blocks are then one tile); of 128 where both sides are packed to 4 bits,
    as a warp then has the fewest instructions for each byte; and of 16 KiB at most. Of five stages, two are the block
    table's: a load of it, and one of what it names, are each two tiles ahead.
    """
    width = padded(key.head_dim)
    rows = 16 if group <= 16 or width > 128 else min(padded(group), 64)
    widest = max(key.bits, value.bits)
    # Two warps hold what four would spill: the compiler stops at 128 registers for those.
    mixed = {key.bits, value.bits} == {4, 8} and width <= 128
    tokens = 128 if widest == 4 and rows == 16 else 64
    return Launch(
        rows=rows, tile=max(16, min(tokens, 16384 * 8 // (widest * width))), warps=2 if mixed else 4, stages=5
    )


@dataclass(frozen=True)
class PrefillLaunch:
    """heads: of a group, beside each other in a program; it takes rows // heads tokens."""

    launch: Launch
    heads: int

    @property
    def tokens(self) -> int:
        """New tokens of a program."""
        return self.launch.rows // self.heads


def prefill_launch(group: int, key: ArenaShape, value: ArenaShape, *, hopper: bool) -> PrefillLaunch:
    """The prefill kernel's size. Its rows do not depend on the formats: items are the same for all layers.

    hopper: a device whose tensor cores take operands from shared memory (capability 9.0). Others hold them in
    registers, and larger tiles than these do not fit there.
    """
    wide = padded(max(key.head_dim, value.head_dim)) > 128
    launch = Launch(rows=128, tile=64, warps=8, stages=2)
    if wide or not hopper:
        launch = Launch(rows=64, tile=32, warps=4, stages=2)
    return PrefillLaunch(launch, heads=min(group, 16))
