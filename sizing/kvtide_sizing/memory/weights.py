"""What a model's weights take on each device, in the format in which they are served."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from fractions import Fraction

from kvtide_sizing.memory.matrices import panels_bytes
from kvtide_sizing.shape import EMBEDDING, EXPERTS, HEAD, NORMS, ModelShape, Split, WeightGroup

BF16_BYTES = 2
_FLOAT32_BYTES = 4

# Of the architectures that are served.
_HEADS_NORMALISED = ("Qwen3ForCausalLM", "Gemma3ForCausalLM")
_NORMS_IN_FLOAT32 = ("Gemma3ForCausalLM",)


class WeightFormat(enum.StrEnum):
    """How matrices are served. Norms, biases and embeddings stay in BF16; in INT8 the head is a matrix too, and what
    embeddings are tied to."""

    BF16 = "BF16"
    FP8 = "FP8"
    INT8 = "INT8"
    INT4 = "INT4"
    MXFP4 = "MXFP4"


@dataclass(frozen=True)
class _Matrix:
    """bits and scale bits of an element, bytes of an output channel.

    experts_only: other matrices stay in BF16; head: it is stored so too
    """

    bits: int
    scale_bits: Fraction = Fraction(0)
    channel_bytes: int = 0
    experts_only: bool = False
    head: bool = False


_MATRIX = {
    WeightFormat.BF16: _Matrix(bits=16),
    # a float32 scale for each tile of 128 · 128, as DeepSeek-V3's files have them
    WeightFormat.FP8: _Matrix(bits=8, scale_bits=Fraction(32, 128 * 128)),
    # a float32 scale for each output channel, as the worker has it
    WeightFormat.INT8: _Matrix(bits=8, channel_bytes=4, head=True),
    # a float16 scale and zero point for each 128 elements of a row, which bounds GPTQ's and AWQ's packed zero points
    WeightFormat.INT4: _Matrix(bits=4, scale_bits=Fraction(32, 128)),
    # OCP's microscaling format: an exponent of 8 bits for each 32 elements; gpt-oss stores its experts so
    WeightFormat.MXFP4: _Matrix(bits=4, scale_bits=Fraction(8, 32), experts_only=True),
}


def native_format(shape: ModelShape) -> WeightFormat:
    """The format that a checkpoint is quantised in; BF16 for every other, GGUF's among them: it is dequantised."""
    native = {WeightFormat.FP8, WeightFormat.INT8, WeightFormat.INT4, WeightFormat.MXFP4}
    return next((known for known in native if known.value == shape.weights_dtype), WeightFormat.BF16)


def weights_bytes(
    shape: ModelShape, stored: WeightFormat = WeightFormat.BF16, devices: int = 1, *, packed: bool = False
) -> int:
    """Bytes of the weights on each of so many devices: what is split, and what each one has a copy of.

    packed: as a CPU's kernels hold matrices, in whole panels
    """
    taken = _more_of_norms(shape) + sum(_group_bytes(group, shape, stored, devices) for group in shape.weights)
    if packed:
        matrix = _MATRIX[stored]
        taken += panels_bytes(shape, (matrix.bits + matrix.scale_bits) / 8, matrix.channel_bytes)
    return taken


def copied_bytes(shape: ModelShape, stored: WeightFormat, devices: int) -> int:
    """Of these, what is there more than once: all devices' bytes beyond those of one."""
    return devices * weights_bytes(shape, stored, devices) - weights_bytes(shape, stored)


def _group_bytes(group: WeightGroup, shape: ModelShape, stored: WeightFormat, devices: int) -> int:
    matrix = _MATRIX[stored]
    channels = group.channels
    if matrix.head and group.name == (EMBEDDING if shape.tied_embeddings else HEAD):
        channels = shape.vocab_size
    if not channels or (matrix.experts_only and group.name != EXPERTS):
        matrix = _MATRIX[WeightFormat.BF16]
    elements = _ceil(group.elements * _share(group.split, shape.kv_heads, devices))
    # A matrix that is split by its rows keeps all its output channels on every device.
    scales = matrix.channel_bytes * channels
    return _ceil(Fraction(elements) * (matrix.bits + matrix.scale_bits) / 8) + scales


def _more_of_norms(shape: ModelShape) -> int:
    """What the worker holds of norms beyond two bytes a parameter: one of heads for each of them, and Gemma's, which
    scale by 1 + weight, in float32."""
    of_heads = sum((shape.query_heads + layer.kv_heads) * layer.head_dim for layer in shape.layers)
    shared = sum(2 * layer.head_dim for layer in shape.layers)
    more = of_heads - shared if shape.architecture in _HEADS_NORMALISED else 0
    if shape.architecture not in _NORMS_IN_FLOAT32:
        return more * BF16_BYTES
    norms = sum(group.elements for group in shape.weights if group.name == NORMS)
    return (norms + more) * _FLOAT32_BYTES - norms * BF16_BYTES


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
