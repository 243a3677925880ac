"""How long requests take: the histograms that dashboards of LLM servers already query, under vLLM's names."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram

from kvtide_worker.server.recent import RecentValues

# vLLM's buckets, so that its dashboards draw the same picture.
_FIRST_TOKEN_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
    1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
)  # fmt: skip
_TOKEN_S = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80,
)  # fmt: skip
_REQUEST_S = (
    0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680,
)  # fmt: skip
_TOKENS = (
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000,
)  # fmt: skip

# The weight of the newest request in the mean that Retry-After is made of.
_NEWEST = 0.1


@dataclass(frozen=True)
class RecentLatency:
    """95 of 100 were not slower, in seconds; None where there were none in the last window_seconds."""

    first_token_p95: float | None
    output_token_p95: float | None
    window_seconds: int


class Latency:
    """The histograms of one model, the mean duration of its last requests, and what the last minute was like."""

    def __init__(
        self, registry: CollectorRegistry, model_name: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            made = Histogram(name, text, ["model_name"], registry=registry, buckets=buckets)
            return made.labels(model_name)

        self._first_token = histogram(
            "vllm:time_to_first_token_seconds", "From a request's arrival to its first token.", _FIRST_TOKEN_S
        )
        # One measure under its new and its older name: dashboards query either.
        self._between_tokens = [
            histogram(name, "Between two tokens of an answer.", _TOKEN_S)
            for name in ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")
        ]
        self._request = histogram(
            "vllm:e2e_request_latency_seconds", "From a request's arrival to its last token.", _REQUEST_S
        )
        self._prompt = histogram("vllm:request_prompt_tokens", "Prompt tokens of a request.", _TOKENS)
        self._generated = histogram("vllm:request_generation_tokens", "Tokens of an answer.", _TOKENS)
        success = Counter(
            "vllm:request_success",
            "Requests that ended with an answer.",
            ["model_name", "finished_reason"],
            registry=registry,
        )
        self._success = {reason: success.labels(model_name, reason) for reason in ("stop", "length")}
        self.mean_request_s = 1.0
        self._clock = clock
        self._recent_first, self._recent_tokens = RecentValues(clock), RecentValues(clock)

    @property
    def recent(self) -> RecentLatency:
        """The last minute."""
        first, tokens = self._recent_first, self._recent_tokens
        return RecentLatency(first.quantile(0.95), tokens.quantile(0.95), first.window_seconds)

    def watch(self, prompt_tokens: int) -> RequestWatch:
        """Begin to time a request that has just arrived."""
        return RequestWatch(self, prompt_tokens, self._clock)

    def first_token(self, seconds: float) -> None:
        """Count a first token."""
        self._first_token.observe(seconds)
        self._recent_first.add(seconds)

    def more_tokens(self, tokens: int, seconds: float) -> None:
        """Count tokens that came together after a pause; each is a token with its share of the pause."""
        self._recent_tokens.add(seconds / tokens, tokens)
        for _ in range(tokens):
            for histogram in self._between_tokens:
                histogram.observe(seconds / tokens)

    def finished(self, seconds: float, prompt_tokens: int, generated_tokens: int, reason: str) -> None:
        """Count a request that ended with an answer."""
        self._request.observe(seconds)
        self._prompt.observe(prompt_tokens)
        self._generated.observe(generated_tokens)
        self._success[reason].inc()
        self.mean_request_s += _NEWEST * (seconds - self.mean_request_s)


class RequestWatch:
    """One request's clock: monotonic, and all of it in this process."""

    def __init__(self, latency: Latency, prompt_tokens: int, clock: Callable[[], float]) -> None:
        self._latency = latency
        self._prompt_tokens = prompt_tokens
        self._clock = clock
        self._arrived_at = self._last_at = clock()
        self.generated_tokens = 0

    def tokens(self, count: int) -> None:
        """Note tokens that have just come."""
        if not count:
            return
        now = self._clock()
        if self.generated_tokens == 0:
            self._latency.first_token(now - self._arrived_at)
            count_later = count - 1
        else:
            count_later = count
        if count_later:
            self._latency.more_tokens(count_later, now - self._last_at)
        self.generated_tokens += count
        self._last_at = now

    def finished(self, reason: str) -> None:
        """Note that the answer is complete."""
        seconds = self._clock() - self._arrived_at
        self._latency.finished(seconds, self._prompt_tokens, self.generated_tokens, reason)
