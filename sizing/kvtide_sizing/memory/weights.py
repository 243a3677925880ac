"""What a model's weights take on each device, in the format in which they are served."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from fractions import Fraction

from kvtide_sizing.shape import EXPERTS, ModelShape, Split, WeightGroup

BF16_BYTES = 2


class WeightFormat(enum.StrEnum):
    """How matrices are served. Norms, biases and embeddings stay in BF16."""

    BF16 = "BF16"
    FP8 = "FP8"
    INT8 = "INT8"
    INT4 = "INT4"
    MXFP4 = "MXFP4"


@dataclass(frozen=True)
class _Matrix:
    """bits and scale bits of an element, bytes of an output channel; experts_only: other matrices stay in BF16."""

    bits: int
    scale_bits: Fraction = Fraction(0)
    channel_bytes: int = 0
    experts_only: bool = False


_MATRIX = {
    WeightFormat.BF16: _Matrix(bits=16),
    # a float32 scale for each tile of 128 · 128, as DeepSeek-V3's files have them
    WeightFormat.FP8: _Matrix(bits=8, scale_bits=Fraction(32, 128 * 128)),
    # a float16 scale for each output channel
    WeightFormat.INT8: _Matrix(bits=8, channel_bytes=2),
    # a float16 scale and zero point for each 128 elements of a row, which bounds GPTQ's and AWQ's packed zero points
    WeightFormat.INT4: _Matrix(bits=4, scale_bits=Fraction(32, 128)),
    # OCP's microscaling format: an exponent of 8 bits for each 32 elements; gpt-oss stores its experts so
    WeightFormat.MXFP4: _Matrix(bits=4, scale_bits=Fraction(8, 32), experts_only=True),
}


def native_format(shape: ModelShape) -> WeightFormat:
    """The format that a checkpoint is quantised in; BF16 for every other, GGUF's among them: it is dequantised."""
    native = {WeightFormat.FP8, WeightFormat.INT8, WeightFormat.INT4, WeightFormat.MXFP4}
    return next((known for known in native if known.value == shape.weights_dtype), WeightFormat.BF16)


def weights_bytes(shape: ModelShape, stored: WeightFormat = WeightFormat.BF16, devices: int = 1) -> int:
    """Bytes of the weights on each of so many devices: what is split, and what each one has a copy of."""
    return sum(_group_bytes(group, shape.kv_heads, stored, devices) for group in shape.weights)


def copied_bytes(shape: ModelShape, stored: WeightFormat, devices: int) -> int:
    """Of these, what is there more than once: all devices' bytes beyond those of one."""
    return devices * weights_bytes(shape, stored, devices) - weights_bytes(shape, stored)


def _group_bytes(group: WeightGroup, kv_heads: int, stored: WeightFormat, devices: int) -> int:
    matrix = _MATRIX[stored]
    if not group.channels or (matrix.experts_only and group.name != EXPERTS):
        matrix = _MATRIX[WeightFormat.BF16]
    elements = _ceil(group.elements * _share(group.split, kv_heads, devices))
    # A matrix that is split by its rows keeps all its output channels on every device.
    scales = matrix.channel_bytes * group.channels
    return _ceil(Fraction(elements) * (matrix.bits + matrix.scale_bits) / 8) + scales


def _share(split: Split, kv_heads: int, devices: int) -> Fraction:
    if split is Split.COPIED:
        return Fraction(1)
    if split is Split.KV_HEADS:
        return Fraction(kv_heads_per_device(kv_heads, devices), kv_heads)
    return Fraction(1, devices)


def kv_heads_per_device(kv_heads: int, devices: int) -> int:
    """KV heads that each device keeps: a part of them, or a copy of one where devices are more."""
    return -(-kv_heads // devices)


def _ceil(amount: Fraction | int) -> int:
    return -(-amount // 1)
