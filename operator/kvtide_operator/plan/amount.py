"""Quantities as Kubernetes writes them, as numbers: 500m CPUs, 1Gi of memory, 2 devices."""

from decimal import Decimal
from typing import Any

# Kubernetes' own suffixes; `m` is a thousandth, as in 500m CPU.
_UNITS = {
    "m": Decimal("0.001"), "k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9), "T": Decimal(10**12),
    "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40),
}  # fmt: skip


def amount(value: Any) -> Decimal | None:
    """The number in base units: CPUs, bytes, devices. None for what is no quantity."""
    text = str(value)
    digits = text.rstrip("KMGTikm")
    unit = text[len(digits) :]
    if not digits.replace(".", "", 1).isdigit() or (unit and unit not in _UNITS):
        return None
    return Decimal(digits) * _UNITS.get(unit, Decimal(1))
