"""Whether a live object already is what is wanted, so that an unchanged child costs no write."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

# Kubernetes' own suffixes; `m` is a thousandth, as in 500m CPU.
_UNITS = {
    "m": Decimal("0.001"), "k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9), "T": Decimal(10**12),
    "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40),
}  # fmt: skip


def differs(wanted: Any, live: Any) -> bool:
    """Whether anything in `wanted` is missing or different in `live`, which may hold more."""
    return difference(wanted, live) is not None


def difference(wanted: Any, live: Any, path: str = "") -> str | None:
    """Where `live` first lacks or contradicts something of `wanted`, such as spec.ports[0].port; None where nowhere.

    The API server adds defaults, drops what is empty, and writes quantities in its own form (1024Mi as 1Gi).
    """
    if isinstance(wanted, Mapping):
        if not wanted:
            return None
        if not isinstance(live, Mapping):
            return path
        parts = ((wanted[key], live.get(key), f"{path}.{key}" if path else str(key)) for key in wanted)
        return next((found for part in parts if (found := difference(*part)) is not None), None)
    if isinstance(wanted, list):
        if not wanted and not live:
            return None
        if not isinstance(live, list) or len(live) != len(wanted):
            return path
        pairs = ((*pair, f"{path}[{at}]") for at, pair in enumerate(zip(wanted, live, strict=True)))
        return next((found for pair in pairs if (found := difference(*pair)) is not None), None)
    if wanted == live or (wanted in ("", False) and live is None):
        return None
    amounts = _amount(wanted), _amount(live)
    return path if amounts[0] is None or amounts[0] != amounts[1] else None


def _amount(value: Any) -> Decimal | None:
    text = str(value)
    digits = text.rstrip("KMGTikm")
    unit = text[len(digits) :]
    if not digits.replace(".", "", 1).isdigit() or (unit and unit not in _UNITS):
        return None
    return Decimal(digits) * _UNITS.get(unit, Decimal(1))
