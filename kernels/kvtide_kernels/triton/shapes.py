"""How large a program of each kernel is: rows, tokens of a tile, warps and stages."""

from __future__ import annotations

from dataclasses import dataclass

from kvtide_sizing.formats import LayerFormat

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


def decode_launch(stored: LayerFormat, head_dim: int) -> Launch:
    """The decode kernel's size, for any number of query heads: larger groups take several programs.

    16 rows are the least that a tensor core takes, and more do not fit the registers with K and V beside them.

    A tile is of 64 tokens whatever the block is, so that a block of 16 does not make a loop of small loads (four blocks
    are then one tile), and of 16 KiB at most. Of five stages, two are the block table's: a load of it, and one of what
    it names, are each two tiles ahead.

    Warps by what the compiler makes of them: four, but two where a side of 4 bits meets one of 8, which four would
    spill, and where a head's words of four levels are too few columns for four. Half a tile where a whole one spilled:
    two warps that unpack both sides of 64 elements, 192 of 8 bits, whose masks take registers, and both kinds of 256.
    """
    width, bits = padded(head_dim), {stored.key.bits, stored.value.bits}
    few = 4 in bits and (width == 64 or (width == 128 and 8 in bits))
    spilled = (bits, head_dim) in (({4}, 64), ({8}, 192), ({4, 8}, 256))
    tile = max(16, min(64, 16384 * 8 // (max(bits) * width)))
    return Launch(rows=16, tile=tile // 2 if spilled else tile, warps=2 if few else 4, stages=5)


@dataclass(frozen=True)
class PrefillLaunch:
    """heads: of a group, beside each other in a program; it takes rows // heads tokens."""

    launch: Launch
    heads: int

    @property
    def tokens(self) -> int:
        """New tokens of a program."""
        return self.launch.rows // self.heads


def prefill_launch(group: int, stored: LayerFormat, head_dim: int, *, hopper: bool) -> PrefillLaunch:
    """The prefill kernel's size. Its rows do not depend on the formats: items are the same for all layers.

    hopper: a device whose tensor cores take operands from shared memory (capability 9.0). Others hold them in
    registers, and larger tiles than these do not fit there. With four bits and heads of 256 only one stage does on a
    Hopper, and half a tile elsewhere.
    """
    bits = {stored.key.bits, stored.value.bits}
    mixed, few = bits == {4, 8}, 4 in bits
    if padded(head_dim) > 128:
        launch = Launch(rows=64, tile=16 if few and not hopper else 32, warps=8, stages=1 if few and hopper else 2)
    elif hopper:
        # What fits with heads of 128 does not with the masks of smaller ones that are computed as 128.
        launch = Launch(rows=128, tile=32 if mixed and head_dim in (80, 96, 112) else 64, warps=8, stages=2)
    else:
        launch = Launch(rows=64, tile=32, warps=4, stages=2)
    return PrefillLaunch(launch, heads=min(group, 16))
