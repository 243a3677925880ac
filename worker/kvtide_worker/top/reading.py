"""What one scrape of a worker's /metrics says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

BLOCK_STATES = ("live", "cached", "free")
COMPONENTS = ("weights", "kv_pool", "activations", "other", "free")

_NEEDED = ("vllm:num_requests_running", "kvtide_kv_blocks", "kvtide_memory_bytes")


class NotAWorker(ValueError):
    """The text is not a worker's. The message is for a person."""


@dataclass(frozen=True)
class Buckets:
    """A histogram so far: the upper bounds in seconds, and how many observations lie at or under each."""

    bounds: tuple[float, ...] = ()
    counts: tuple[float, ...] = ()

    def since(self, before: Buckets) -> Buckets:
        """What came behind an earlier reading of the same histogram."""
        if before.bounds != self.bounds:
            return self
        return Buckets(self.bounds, tuple(now - then for now, then in zip(self.counts, before.counts, strict=True)))

    def quantile(self, share: float) -> float | None:
        """Seconds that this share of the observations stays under; None without any.

        Linear within a bucket, and the last bound beyond it: as Prometheus' histogram_quantile does it.
        """
        total = self.counts[-1] if self.counts else 0
        if total <= 0:
            return None
        wanted, low, below = share * total, 0.0, 0.0
        for bound, count in zip(self.bounds, self.counts, strict=True):
            if count >= wanted:
                return low if bound == inf else low + (bound - low) * (wanted - below) / (count - below)
            low, below = bound, count
        return low


@dataclass(frozen=True)
class Reading:
    """The numbers at one moment. Sizes in bytes; `at` in seconds of any one clock.

    blocks:      by BLOCK_STATES; tokens: what these blocks hold, or have room for
    predicted, measured:  by COMPONENTS
    stored:      how KV is stored: (layers, key, value)
    """

    at: float
    model: str
    running: int
    waiting: int
    queued_prompt_tokens: int
    batch_limit: int
    capacity_tokens: int
    blocks: Mapping[str, int]
    tokens: Mapping[str, int]
    predicted: Mapping[str, int]
    measured: Mapping[str, int]
    stored: tuple[tuple[str, str, str], ...]
    block_size: int
    preemptions: int
    prompt_tokens: int
    generation_tokens: int
    prefix_queries: int
    prefix_hits: int
    answers: int
    first_token: Buckets
    between_tokens: Buckets

    @property
    def usage(self) -> float:
        """Live blocks as a part of all."""
        return self.blocks["live"] / max(1, sum(self.blocks.values()))


def read(text: str, at: float) -> Reading:
    """A reading of /metrics as it was at `at`. Raises NotAWorker."""
    samples: dict[str, list[Sample]] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                samples.setdefault(sample.name, []).append(sample)
    except ValueError as error:
        raise NotAWorker(f"the answer is not in Prometheus' text format: {error}") from error
    missing = [name for name in _NEEDED if name not in samples]
    if missing:
        # The collector is silent until the model is there; another server never has these.
        raise NotAWorker(f"no {', '.join(missing)}: the model is not loaded yet, or this is no KVTide worker")

    def value(name: str) -> int:
        return round(sum(sample.value for sample in samples.get(name, ())))

    def by(name: str, label: str, **where: str) -> dict[str, int]:
        return {
            sample.labels[label]: round(sample.value)
            for sample in samples.get(name, ())
            if where.items() <= sample.labels.items()
        }

    stored = samples.get("kvtide_kv_format_info", [])
    return Reading(
        at=at,
        model=samples["vllm:num_requests_running"][0].labels.get("model_name", "?"),
        running=value("vllm:num_requests_running"),
        waiting=value("vllm:num_requests_waiting"),
        queued_prompt_tokens=value("kvtide_queued_prompt_tokens"),
        batch_limit=value("kvtide_batch_limit"),
        capacity_tokens=value("kvtide_kv_capacity_tokens"),
        blocks=by("kvtide_kv_blocks", "state"),
        tokens=by("kvtide_kv_tokens", "state"),
        predicted=by("kvtide_memory_bytes", "component", source="predicted"),
        measured=by("kvtide_memory_bytes", "component", source="measured"),
        stored=tuple((one.labels["layers"], one.labels["key"], one.labels["value"]) for one in stored),
        block_size=int(stored[0].labels["block_size"]) if stored else 0,
        preemptions=value("vllm:num_preemptions_total"),
        prompt_tokens=value("vllm:prompt_tokens_total"),
        generation_tokens=value("vllm:generation_tokens_total"),
        prefix_queries=value("vllm:prefix_cache_queries_total"),
        prefix_hits=value("vllm:prefix_cache_hits_total"),
        answers=value("vllm:request_success_total"),
        first_token=_buckets(samples.get("vllm:time_to_first_token_seconds_bucket", ())),
        between_tokens=_buckets(samples.get("vllm:inter_token_latency_seconds_bucket", ())),
    )


def _buckets(samples: Iterable[Sample]) -> Buckets:
    pairs = sorted((float(sample.labels["le"]), sample.value) for sample in samples)
    return Buckets(tuple(bound for bound, _ in pairs), tuple(count for _, count in pairs))
