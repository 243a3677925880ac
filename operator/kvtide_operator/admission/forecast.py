"""A plan in the few lines that kubectl prints when a resource is applied."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from kvtide_operator.api.plan import Plan
from kvtide_operator.api.spec import Precision

Json = dict[str, Any]

# https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#response: longer warnings
# may be cut, and of all that a request gets, 4096 characters are shown.
LONGEST = 256
MOST = 5


def forecast(plan: Json) -> tuple[str, ...]:
    """At most five lines of at most 256 characters: what the plan holds, what another precision would, its warnings.

    plan: the JSON of a plan of this or of an earlier version.
    """
    return tuple(map(_shortened, islice(_lines(Plan.model_validate(plan)), MOST)))


def _lines(plan: Plan) -> Iterator[str]:
    held = f"{plan.max_concurrency} sequence{'' if plan.max_concurrency == 1 else 's'}"
    yield (
        f"{plan.kv.precision} holds {held} of {plan.max_context_tokens} tokens on this device{_next_precision(plan)}"
    )
    yield (
        f"the KV cache holds {plan.kv.capacity_tokens} tokens, {plan.kv.bytes_per_token} bytes each;"
        f" {plan.batch_limit} sequences of the expected length run at once"
    )
    yield from plan.warnings


def _next_precision(plan: Plan) -> str:
    """The next step of precision: of those that would hold more sequences, the one that gains the least."""
    more = [
        (other.max_concurrency, name, other.served)
        for other in plan.alternatives
        if (name := _precision(other.choice)) and other.max_concurrency > plan.max_concurrency
    ]
    if not more:
        return ""
    held, name, served = min(more)
    return f", {name} would hold {held}{' (not served by this release yet)' if served is False else ''}"


def _precision(choice: str) -> str | None:
    """The precision that an alternative names, None where it is another choice or one that no resource can make."""
    field, _, value = choice.partition(" ")
    return value if field == "precision" and value in tuple(Precision) else None


def _shortened(line: str) -> str:
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"
