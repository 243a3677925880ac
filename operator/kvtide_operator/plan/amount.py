"""Quantities as Kubernetes writes them, as numbers: 500m CPUs, 1Gi of memory, 2 devices."""

import re
from decimal import Decimal
from typing import Any

_SUFFIXES = {
    "n": Decimal(10) ** -9, "u": Decimal(10) ** -6, "m": Decimal(10) ** -3, "": Decimal(1),
    **{letter: Decimal(1000) ** (power + 1) for power, letter in enumerate("kMGTPE")},
    **{f"{letter}i": Decimal(1024) ** (power + 1) for power, letter in enumerate("KMGTPE")},
}  # fmt: skip
# The grammar in k8s.io/apimachinery/pkg/api/resource/quantity.go: a number with a suffix, or with an exponent.
_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([numkMGTPE]|[KMGTPE]i)?|[eE]([+-]?\d{1,3}))")


def amount(value: Any) -> Decimal | None:
    """The number in base units: CPUs, bytes, devices. None for what is no quantity."""
    found = _QUANTITY.fullmatch(str(value))
    if found is None:
        return None
    number, suffix, exponent = found.groups()
    return Decimal(number) * (Decimal(10) ** int(exponent) if exponent else _SUFFIXES[suffix or ""])
