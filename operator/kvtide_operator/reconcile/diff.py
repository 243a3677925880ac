"""Whether a live object already is what is wanted, so that an unchanged child costs no write."""

from collections.abc import Mapping
from typing import Any

from kvtide_operator.plan.amount import amount


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
    amounts = amount(wanted), amount(live)
    return path if amounts[0] is None or amounts[0] != amounts[1] else None
