"""What the bases take that keys of few bits are stored in, and what fitting them to a model takes while it loads."""

from __future__ import annotations

from collections.abc import Sequence

from kvtide_sizing.formats import LayerFormat
from kvtide_sizing.shape import ModelShape

# Tokens of a text that bases are fitted to. Queries and keys of 64 to 256 elements show their directions in as many.
CALIBRATION_TOKENS = 1024

# Rows of scores that are looked at together, over all heads of a group: as many as the processor's cache holds.
SCORE_ROWS = 256
# That the basis of a head is computed with.
_MATRICES = 12

_BF16, _FLOAT32, _FLOAT64, _INT64 = 2, 4, 8, 8


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


def calibration_bytes(shape: ModelShape) -> int:
    """Peak bytes of fitting them, from above; the pool is not there yet.

    The model reads the text in one step. For each window there are first the differences of all positions, as int64 and
    twice as bool, and what a token sees, which stays. Then, of one KV head, its queries and keys in float32 with as
    many scores as are looked at together, or in float64 twice, the second time weighted; and at last, of all heads,
    what is computed of the moments.
    """
    tokens = CALIBRATION_TOKENS
    layer = max(shape.layer_kinds, key=lambda layer: layer.kv_heads * layer.head_dim)
    group = shape.query_heads // layer.kv_heads
    query, kept = shape.query_heads * layer.head_dim, layer.elements_per_token
    differences = tokens**2 * (_INT64 + 2)
    elements = tokens * (group + 1) * layer.head_dim
    scores, moments = (elements + 3 * SCORE_ROWS * tokens) * _FLOAT32, 2 * elements * _FLOAT64
    matrices = _MATRICES * layer.kv_heads * layer.head_dim**2 * _FLOAT64
    seen = len({layer.window for layer in shape.layer_kinds}) * tokens**2
    fitting = seen + max(differences, scores, moments, matrices)
    # heads before and after the rotation
    attending = tokens * 2 * (query + kept) * _BF16
    mlp = tokens * shape.intermediate_size * 4 * _BF16
    return max(fitting + attending, mlp) + tokens * shape.hidden_size * 2 * _BF16
