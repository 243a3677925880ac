"""How a KV head is stored, in bytes. The one table that the planner, the pool and the kernels take sizes from."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from kvtide_sizing.errors import UnsupportedPrecision
from kvtide_sizing.shape import LayerShape, ModelShape


class Precision(enum.StrEnum):
    """KV precisions, spelled as in the resource. FP8 is for devices that compute with it."""

    BF16 = "BF16"
    FP8 = "FP8"
    INT8 = "INT8"
    MIXED = "Mixed"
    K8V4 = "K8V4"
    INT4 = "INT4"


@dataclass(frozen=True)
class VectorFormat:
    """How one head's key or value of one token is stored: packed elements, and what they are scaled by.

    bits:         of one element
    scale_bytes:  per vector: a float16 scale
    zero_bytes:   per vector: a float16 zero point
    """

    name: str
    bits: int
    scale_bytes: int = 0
    zero_bytes: int = 0

    def vector_bytes(self, dim: int) -> int:
        """Bytes of a vector of dim elements, scale and zero point included; nothing for no elements."""
        if dim == 0:
            return 0
        return -(-dim * self.bits // 8) + self.scale_bytes + self.zero_bytes


BF16 = VectorFormat("BF16", bits=16)
FP8 = VectorFormat("FP8", bits=8)  # e4m3; one scale for a whole layer, which is not counted
INT8 = VectorFormat("INT8", bits=8, scale_bytes=2)  # symmetric
INT4 = VectorFormat("INT4", bits=4, scale_bytes=2, zero_bytes=2)  # asymmetric
FLOAT32 = VectorFormat("FLOAT32", bits=32)  # of no precision: an instrument for tests of exactness


@dataclass(frozen=True)
class LayerFormat:
    """The formats of one layer's keys and values."""

    key: VectorFormat
    value: VectorFormat

    @property
    def keeps_recent(self) -> bool:
        """Whether the last tokens stay in BF16: where a side has so few bits that errors in them would be dear."""
        return min(self.key.bits, self.value.bits) < 8

    @property
    def has_key_basis(self) -> bool:
        """Whether keys are stored in a basis that was fitted to the model, for fewer bits to cost less."""
        return self.key.bits < 16

    def bytes_per_token(self, layer: LayerShape) -> int:
        """What a layer of this shape keeps of one token: kv_heads · (key bytes + value bytes of one head)."""
        return sum(self.side_bytes(layer))

    def side_bytes(self, layer: LayerShape) -> tuple[int, int]:
        """The bytes of a token's keys, and of its values."""
        return (
            layer.kv_heads * self.key.vector_bytes(layer.head_dim),
            layer.kv_heads * self.value.vector_bytes(layer.value_dim),
        )


# The last tokens of a sequence that layers with a 4-bit side keep in BF16 beside the packed ones.
# docs/kernels.md has the measurement: most of the damage of few bits is in what lies just behind the query.
RECENT_TOKENS = 32

# Blocks hold so many packed tokens for each of BF16 that fits in their place: 4-bit sides are the smallest.
RECENT_PARTS = 4

_UNIFORM = {
    Precision.BF16: LayerFormat(BF16, BF16),
    Precision.FP8: LayerFormat(FP8, FP8),
    Precision.INT8: LayerFormat(INT8, INT8),
    Precision.K8V4: LayerFormat(INT8, INT4),
    Precision.INT4: LayerFormat(INT4, INT4),
}

# Mixed keeps so many layers at either end in BF16, where errors hurt most, and stores the rest as K8V4.
# references: TurboQuant in vLLM leaves the same ones.
MIXED_EDGE_LAYERS = 2


def precision_named(text: str) -> Precision:
    """The precision of that name. Raises UnsupportedPrecision for none."""
    try:
        return Precision(text)
    except ValueError:
        raise UnsupportedPrecision(
            f"'{text}' is no KV precision; write {', '.join(precision.value for precision in Precision)}, or Auto"
        ) from None


def layer_formats(shape: ModelShape, precision: Precision) -> tuple[LayerFormat, ...]:
    """The format of each layer."""
    if precision is not Precision.MIXED:
        return (_UNIFORM[precision],) * shape.num_layers
    last = shape.num_layers - MIXED_EDGE_LAYERS
    return tuple(
        _UNIFORM[Precision.K8V4 if MIXED_EDGE_LAYERS <= index < last else Precision.BF16]
        for index in range(shape.num_layers)
    )


def layer_bytes_per_token(shape: ModelShape, precision: Precision) -> tuple[int, ...]:
    """What each layer keeps of one token, in bytes."""
    formats = layer_formats(shape, precision)
    return tuple(stored.bytes_per_token(layer) for stored, layer in zip(formats, shape.layers, strict=True))


def bytes_per_token(shape: ModelShape, precision: Precision) -> int:
    """What one token of context costs, in bytes, over all layers."""
    return sum(layer_bytes_per_token(shape, precision))
