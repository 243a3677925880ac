"""A plan in the few lines that kubectl prints when a resource is applied."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from kvtide_operator.api.spec import Precision
from kvtide_sizing import served

Json = dict[str, Any]

# https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#response: longer warnings
# may be cut, and of all that a request gets, 4096 characters are shown.
LONGEST = 256
MOST = 5


def forecast(plan: Json) -> tuple[str, ...]:
    """At most five lines of at most 256 characters: what the plan holds, what another precision would, its warnings."""
    return tuple(map(_shortened, islice(_lines(plan), MOST)))


def _lines(plan: Json) -> Iterator[str]:
    kv = plan["kv"]
    yield f"{_holds(plan)}{_next_precision(plan)}"
    yield (
        f"the KV cache holds {kv['capacityTokens']} tokens, {kv['bytesPerToken']} bytes each;"
        f" {plan['batchLimit']} sequences of the expected length run at once"
    )
    yield from plan["warnings"]


def _holds(plan: Json) -> str:
    held = plan["maxConcurrency"]
    return f"{plan['kv']['precision']} holds {_sequences(held)} of {plan['maxContextTokens']} tokens on this device"


def _next_precision(plan: Json) -> str:
    """The next step of precision: of those that would hold more sequences, the one that gains the least."""
    more = [
        (other["maxConcurrency"], name)
        for other in plan["alternatives"]
        if (name := _precision(other["choice"])) and other["maxConcurrency"] > plan["maxConcurrency"]
    ]
    if not more:
        return ""
    held, name = min(more)
    unserved = "" if name in served.PRECISIONS else " (not served by this release yet)"
    return f", {name} would hold {held}{unserved}"


def _precision(choice: str) -> str | None:
    """The precision that an alternative names, None where it is another choice or one that no resource can make."""
    field, _, value = choice.rpartition(" ")
    return value if field.endswith("precision") and value in tuple(Precision) else None


def _sequences(count: int) -> str:
    return "1 sequence" if count == 1 else f"{count} sequences"


def _shortened(line: str) -> str:
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"
