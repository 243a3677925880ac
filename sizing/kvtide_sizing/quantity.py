"""Amounts of memory: read as Kubernetes and people write them, written as people read them."""

from __future__ import annotations

import re
from decimal import Decimal

from kvtide_sizing.errors import InvalidQuantity

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

# Kubernetes' suffixes (apimachinery's resource.Quantity) and the written-out units. Lower-case m is Kubernetes'
# milli, which makes no sense for memory, so it is not here.
_UNITS = {
    "": 1, "B": 1,
    "k": 10**3, "kB": 10**3, "M": 10**6, "MB": 10**6, "G": 10**9, "GB": 10**9, "T": 10**12, "TB": 10**12,
    "Ki": 1 << 10, "KiB": 1 << 10, "Mi": 1 << 20, "MiB": 1 << 20,
    "Gi": 1 << 30, "GiB": 1 << 30, "Ti": 1 << 40, "TiB": 1 << 40,
}  # fmt: skip
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)(?:[eE](\d{1,2}))?\s*([A-Za-z]*)")


def parse_quantity(text: str) -> int:
    """Bytes in '40Gi', '40GiB', '500M', '1.5Gi' or '2e9'; a fraction of a byte is dropped.

    Raises InvalidQuantity for anything else, zero included: no device has no memory.
    """
    match = _QUANTITY.fullmatch(text.strip())
    if match is None or match[3] not in _UNITS:
        raise InvalidQuantity(
            f"'{text}' is not an amount of memory; write a number and one of Ki, Mi, Gi, Ti (powers of 1024) "
            f"or k, M, G, T (powers of 1000), such as 40Gi"
        )
    amount = int(Decimal(match[1]) * 10 ** int(match[2] or 0) * _UNITS[match[3]])
    if amount < 1:
        raise InvalidQuantity(f"'{text}' is no memory at all; write an amount such as 40Gi")
    return amount


def format_bytes(amount: int) -> str:
    """'31.4 GiB', '1.31 GiB', '512 MiB' or '900 KiB': for reading, rounded."""
    if amount >= 10 * GIB:
        return f"{amount / GIB:.1f} GiB"
    if amount >= GIB:
        return f"{amount / GIB:.2f} GiB"
    if amount >= MIB:
        return f"{amount / MIB:.0f} MiB"
    return f"{amount / KIB:.0f} KiB" if amount >= KIB else f"{amount} B"
