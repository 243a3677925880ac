"""What happened between two readings, by the second."""

from __future__ import annotations

from dataclasses import dataclass

from kvtide_worker.top.reading import Reading


@dataclass(frozen=True)
class Rates:
    """Tokens and answers a second, latencies in seconds; None where nothing happened that it could be said of.

    hit_share: of the prompt tokens that were looked up, those that the prefix cache had
    """

    prompt_tokens: float | None = None
    output_tokens: float | None = None
    answers: float | None = None
    hit_share: float | None = None
    first_token_p50: float | None = None
    first_token_p95: float | None = None
    between_tokens_p50: float | None = None
    between_tokens_p95: float | None = None


def rates(before: Reading, now: Reading) -> Rates:
    """The rates from one reading to a later one. A worker that has restarted counts from zero again."""
    elapsed = max(now.at - before.at, 1e-9)
    restarted = now.generation_tokens < before.generation_tokens or now.prompt_tokens < before.prompt_tokens

    def gained(name: str) -> int:
        return int(getattr(now, name)) - (0 if restarted else int(getattr(before, name)))

    first_token, between_tokens = now.first_token, now.between_tokens
    if not restarted:
        first_token, between_tokens = first_token.since(before.first_token), between_tokens.since(before.between_tokens)
    queries = gained("prefix_queries")
    return Rates(
        prompt_tokens=gained("prompt_tokens") / elapsed,
        output_tokens=gained("generation_tokens") / elapsed,
        answers=gained("answers") / elapsed,
        hit_share=gained("prefix_hits") / queries if queries else None,
        first_token_p50=first_token.quantile(0.5),
        first_token_p95=first_token.quantile(0.95),
        between_tokens_p50=between_tokens.quantile(0.5),
        between_tokens_p95=between_tokens.quantile(0.95),
    )
