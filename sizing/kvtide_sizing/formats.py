"""How a KV head is stored, in bytes. The one table that the planner, the pool and the kernels take sizes from."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from kvtide_sizing.errors import UnsupportedPrecision
from kvtide_sizing.knapsack import Option, least_loss
from kvtide_sizing.shape import LayerSensitivity, LayerShape, ModelShape, SideSensitivity


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

# Of a model that nobody has measured, Mixed keeps so many layers at either end in BF16, where errors hurt most, and
# stores the rest as K8V4. references: TurboQuant in vLLM leaves the same ones.
MIXED_EDGE_LAYERS = 2

# A side's choices, in the order of what `_losses` says of them.
_SIDE_FORMATS = (BF16, INT8, INT4)


def precision_named(text: str) -> Precision:
    """The precision of that name. Raises UnsupportedPrecision for none."""
    try:
        return Precision(text)
    except ValueError:
        raise UnsupportedPrecision(
            f"'{text}' is no KV precision; write {', '.join(precision.value for precision in Precision)}, or Auto"
        ) from None


def layer_formats(shape: ModelShape, precision: Precision) -> tuple[LayerFormat, ...]:
    """The format of each layer. Mixed of a model that was measured has the bytes of K8V4 and loses the least of all."""
    if precision is not Precision.MIXED:
        return (_UNIFORM[precision],) * shape.num_layers
    if shape.sensitivity is not None:
        return choose_formats(shape, shape.sensitivity, bytes_per_token(shape, Precision.K8V4))
    last = shape.num_layers - MIXED_EDGE_LAYERS
    return tuple(
        _UNIFORM[Precision.K8V4 if MIXED_EDGE_LAYERS <= index < last else Precision.BF16]
        for index in range(shape.num_layers)
    )


@lru_cache(maxsize=64)
def choose_formats(
    shape: ModelShape, sensitivity: tuple[LayerSensitivity, ...], budget_bytes_per_token: int
) -> tuple[LayerFormat, ...]:
    """The sides' formats with the least sum of measured losses, in blocks of so many bytes for a token of all layers.

    Exact where all layers share one block table. Where windows make several, a slot is as wide as its widest layer:
    layers of like sensitivity share one, and the formats of slots are chosen, again exactly.

    Raises ValueError where even INT4 takes more, for layers of different heads, and for a sensitivity of other layers.
    """
    if len(sensitivity) != shape.num_layers or len({(each.kv_heads, each.head_dim) for each in shape.layers}) != 1:
        raise ValueError(f"{len(sensitivity)} layers were measured; {shape.name} has {shape.num_layers}, to be alike")
    slots = _slots(shape, sensitivity)
    sides = []
    for slot in slots:
        layer = shape.layers[slot[0]]
        for dim, measured in (
            (layer.head_dim, [sensitivity[index].key for index in slot]),
            (layer.value_dim, [sensitivity[index].value for index in slot]),
        ):
            widths = (len(slot) * layer.kv_heads * stored.vector_bytes(dim) for stored in _SIDE_FORMATS)
            sides.append([Option(size, loss) for size, loss in zip(widths, _losses(measured), strict=True)])
    chosen = [_SIDE_FORMATS[index] for index in least_loss(sides, budget_bytes_per_token)]
    of_layer = {
        layer: LayerFormat(key, value)
        for slot, key, value in zip(slots, chosen[::2], chosen[1::2], strict=True)
        for layer in slot
    }
    return tuple(of_layer[index] for index in range(shape.num_layers))


def _losses(measured: Sequence[SideSensitivity]) -> tuple[float, ...]:
    return 0.0, sum(side.int8 for side in measured), sum(side.int4 for side in measured)


def _slots(shape: ModelShape, sensitivity: Sequence[LayerSensitivity]) -> list[list[int]]:
    """Layers that share a slot of all block tables, the most sensitive first: of each window as many as it has tables.

    One layer each where there is one table, as `memory.kv.kv_layout` deals them.
    """
    windows = shape.layers_by_window.values()
    count = shape.num_layers if len(windows) == 1 else math.gcd(*map(len, windows))

    def lost(layer: int) -> float:
        return sensitivity[layer].key.int4 + sensitivity[layer].value.int4

    ordered = [sorted(layers, key=lost, reverse=True) for layers in windows]
    return [
        [
            layer
            for layers in ordered
            for layer in layers[slot * len(layers) // count : (slot + 1) * len(layers) // count]
        ]
        for slot in range(count)
    ]


def layer_bytes_per_token(shape: ModelShape, precision: Precision) -> tuple[int, ...]:
    """What each layer keeps of one token, in bytes."""
    formats = layer_formats(shape, precision)
    return tuple(stored.bytes_per_token(layer) for stored, layer in zip(formats, shape.layers, strict=True))


def stored_bytes_per_token(shape: ModelShape, formats: Sequence[LayerFormat]) -> int:
    """What one token of context costs, in bytes, over all layers stored so."""
    return sum(stored.bytes_per_token(layer) for stored, layer in zip(formats, shape.layers, strict=True))


def bytes_per_token(shape: ModelShape, precision: Precision) -> int:
    """As `stored_bytes_per_token`, in a precision."""
    return stored_bytes_per_token(shape, layer_formats(shape, precision))
