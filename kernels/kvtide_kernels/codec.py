"""What a vector is stored as, bit by bit: the encoder and decoder that every kernel is measured against.

For a vector x of dim elements in float32, where f16 rounds to float16 and round rounds halves to even:

    BF16    element i at bytes 2i and 2i + 1, low byte first; FLOAT32 likewise at 4i to 4i + 3
    INT8    scale = f16(max |x| / 127)          n = clamp(round(x / scale), -127, 127)      x ~ scale · n
            element i at byte i, two's complement
    INT4    y = hadamard(x)
            zero = f16(min y), scale = f16((max y - min y) / 15)
            n = clamp(round((y - zero) / scale), 0, 15)                                     y ~ scale · n + zero
            element 2i in the low half of byte i, 2i + 1 in the high one; with an odd dim the last half is 0

Scale and zero are rounded before they are used, so that the encoder rounds to values that the decoder has. Where the
scale rounds to 0, as of zeros and of equal elements, all n are 0. A vector that float16 has no scale or zero for (an
element is NaN or infinite, or beyond 65504 in the end) has scale NaN, zero 0 where there is one, and all n 0: it is NaN
in every element, and no other vector is touched. A kernel may write other codes for such a vector, if it ends.

Two encoders that sum in another order may differ by one n where a quotient lies at a half.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvtide_kernels.hadamard import hadamard
from kvtide_sizing.formats import BF16, FLOAT32, INT4, INT8, VectorFormat

_SERVED = (BF16, INT8, INT4, FLOAT32)

# What is stored as it is.
DTYPES = {BF16: torch.bfloat16, FLOAT32: torch.float32}


@dataclass(frozen=True)
class Packed:
    """Encoded vectors: data uint8 [..., bytes], scale and zero float16 [...] where the format has them."""

    data: torch.Tensor
    scale: torch.Tensor | None = None
    zero: torch.Tensor | None = None


def data_bytes(stored: VectorFormat, dim: int) -> int:
    """Bytes of a vector's packed elements, without its scale and zero."""
    return stored.vector_bytes(dim) - stored.scale_bytes - stored.zero_bytes


def is_rotated(stored: VectorFormat) -> bool:
    """True where vectors are stored as their Hadamard transform, so that queries and results are transformed too."""
    return stored is INT4


def encode(stored: VectorFormat, x: torch.Tensor) -> Packed:
    """Vectors [..., dim] of any floating dtype, encoded. Raises ValueError for a format without an encoder."""
    check_served(stored)
    if stored in DTYPES:
        return Packed(x.to(DTYPES[stored]).contiguous().view(torch.uint8))
    if stored is INT8:
        scale, _ = _usable(x.float().abs().amax(-1) / 127, torch.zeros(()))
        levels = _levels(x.float(), scale, -127, 127).to(torch.int8)
        return Packed(levels.view(torch.uint8), scale)
    y = hadamard(x)
    low, high = y.aminmax(dim=-1)
    scale, zero = _usable((high - low) / 15, low)
    levels = _levels(y - zero.float()[..., None], scale, 0, 15).to(torch.uint8)
    pairs = torch.nn.functional.pad(levels, (0, levels.shape[-1] % 2)).reshape(*x.shape[:-1], -1, 2)
    return Packed(pairs[..., 0] | pairs[..., 1] << 4, scale, zero)


def decode(stored: VectorFormat, packed: Packed, dim: int) -> torch.Tensor:
    """The vectors, float32 [..., dim]. Raises ValueError for a format without a decoder."""
    y = decode_stored(stored, packed, dim)
    return hadamard(y) if is_rotated(stored) else y


def decode_stored(stored: VectorFormat, packed: Packed, dim: int) -> torch.Tensor:
    """As `decode`, but rotated still where the format rotates: what attention reads."""
    check_served(stored)
    if packed.scale is None:
        return packed.data.contiguous().view(DTYPES[stored]).float()
    scale = packed.scale.float()[..., None]
    if packed.zero is None:
        return packed.data.view(torch.int8).float() * scale
    levels = torch.stack([packed.data & 15, packed.data >> 4], dim=-1).flatten(-2)[..., :dim]
    return levels.float() * scale + packed.zero.float()[..., None]


def check_served(stored: VectorFormat) -> None:
    """Raise ValueError for a format that has no codec."""
    if stored not in _SERVED:
        raise ValueError(
            f"there is no codec for {stored.name}; there is one for {', '.join(known.name for known in _SERVED)}"
        )


def _usable(scale: torch.Tensor, zero: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both in float16; NaN and 0 for a vector where float16 does not have both of them."""
    scale, zero = scale.half(), zero.half()
    usable = scale.isfinite() & zero.isfinite()
    return torch.where(usable, scale, torch.nan), torch.where(usable, zero, 0.0)


def _levels(x: torch.Tensor, scale: torch.Tensor, low: int, high: int) -> torch.Tensor:
    wide = scale.float()[..., None]
    return torch.where(wide > 0, (x / wide).round().clamp(low, high), 0.0)
