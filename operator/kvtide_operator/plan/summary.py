"""A plan in one sentence: what was chosen, and what the next-best choice would have given."""

from typing import Any

from kvtide_operator.api.plan import Plan, PlanAlternative

Json = dict[str, Any]

# What a next-best is looked for in, first to last: what saves memory by less quality, by other heads, by other blocks.
_FIELDS = ("precision", "kvHeads", "blockSizeTokens")


def summary(plan: Json) -> str:
    """The sentence of the condition Planned, for the JSON of a plan of this or of an earlier version."""
    found = Plan.model_validate(plan)
    kv = found.kv
    chosen = (
        f"{kv.precision}, blocks of {kv.block_size_tokens} tokens, {kv.capacity_tokens} tokens of KV cache,"
        f" batch limit {found.batch_limit}, {_sequences(found.max_concurrency)} of {found.max_context_tokens} tokens"
    )
    other = _next_best(found)
    if other is None:
        return chosen
    note = ", which this release does not serve yet" if other.served is False else ""
    return (
        f"{chosen}; next-best: {other.choice} would hold {other.capacity_tokens} tokens,"
        f" {other.max_concurrency} such sequences{note}"
    )


def _next_best(plan: Plan) -> PlanAlternative | None:
    """Of the first field that has any, the alternative that holds more than the plan by the least; else the best."""
    for field in _FIELDS:
        others = [other for other in plan.alternatives if other.choice.split()[0] == field]
        more = [other for other in others if other.capacity_tokens > plan.kv.capacity_tokens]
        if more:
            return min(more, key=_held)
        if others:
            return max(others, key=_held)
    return None


def _held(alternative: PlanAlternative) -> tuple[int, int]:
    return alternative.capacity_tokens, alternative.max_concurrency


def _sequences(count: int) -> str:
    return "1 sequence" if count == 1 else f"{count} sequences"
