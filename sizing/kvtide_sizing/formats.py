"""How a KV head is stored, in bytes. The one table that the planner, the pool and the kernels take sizes from."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from kvtide_sizing.errors import UnsupportedPrecision
from kvtide_sizing.shape import ModelShape


class Precision(enum.StrEnum):
    """KV precisions, spelled as in the resource. MIXED chooses one per layer, for keys and values apart."""

    BF16 = "BF16"
    INT8 = "INT8"
    K8V4 = "K8V4"
    INT4 = "INT4"
    MIXED = "Mixed"


@dataclass(frozen=True)
class HeadFormat:
    """How one KV head of one token is stored: head_dim elements of key_bits, and as many of value_bits."""

    key_bits: int
    value_bits: int
    head_dim: int

    @property
    def key_bytes(self) -> int:
        """Bytes of one head's key."""
        return self.key_bits * self.head_dim // 8

    @property
    def value_bytes(self) -> int:
        """Bytes of one head's value."""
        return self.value_bits * self.head_dim // 8

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one head of one token, key and value."""
        return self.key_bytes + self.value_bytes


# (key bits, value bits) of what is served.
_BITS: dict[Precision, tuple[int, int]] = {Precision.BF16: (16, 16)}


def served() -> tuple[Precision, ...]:
    """The precisions that have a row in the table."""
    return tuple(_BITS)


def head_format(precision: Precision, head_dim: int) -> HeadFormat:
    """The row of a precision. Raises UnsupportedPrecision for one that has none."""
    if precision not in _BITS:
        raise UnsupportedPrecision(
            f"KV precision {precision} is not served yet; write {' or '.join(served())}, or Auto"
        )
    return HeadFormat(*_BITS[precision], head_dim=head_dim)


def layer_bytes_per_token(shape: ModelShape, precision: Precision) -> tuple[int, ...]:
    """What each layer keeps per token, in bytes: kv_heads · (key bytes + value bytes of one head)."""
    return tuple(layer.kv_heads * head_format(precision, layer.head_dim).bytes_per_token for layer in shape.layers)


def bytes_per_token(shape: ModelShape, precision: Precision) -> int:
    """What one token of context costs, in bytes, over all layers."""
    return sum(layer_bytes_per_token(shape, precision))
