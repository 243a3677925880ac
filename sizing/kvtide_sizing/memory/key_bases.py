"""What the bases take that keys of few bits are stored in."""

from __future__ import annotations

from collections.abc import Sequence

from kvtide_sizing.formats import LayerFormat
from kvtide_sizing.shape import ModelShape

_FLOAT32 = 4


def key_bases_bytes(shape: ModelShape, formats: Sequence[LayerFormat]) -> int:
    """Bytes of all layers' bases; shape is of one device, formats are the layers'."""
    return sum(
        layer.kv_heads * head_basis_bytes(layer.head_dim)
        for layer, stored in zip(shape.layers, formats, strict=True)
        if stored.has_key_basis
    )


def head_basis_bytes(head_dim: int) -> int:
    """Of one KV head, in float32: a matrix for its keys, one for its queries, and the keys' centre."""
    return (2 * head_dim**2 + head_dim) * _FLOAT32
