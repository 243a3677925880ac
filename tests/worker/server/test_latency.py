"""The latency histograms, with a clock that the test moves."""

import pytest
from prometheus_client import CollectorRegistry

from kvtide_worker.server.latency import Latency, RequestWatch


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def sums(registry: CollectorRegistry, name: str) -> tuple[float | None, float | None]:
    labels = {"model_name": "m"}
    return registry.get_sample_value(f"{name}_count", labels), registry.get_sample_value(f"{name}_sum", labels)


def test_a_request_is_timed_from_its_arrival(registry: CollectorRegistry) -> None:
    clock = Clock()
    latency = Latency(registry, "m")
    watch = RequestWatch(latency, prompt_tokens=7, clock=clock)
    for pause, tokens in ((2.0, 1), (0.5, 1), (0.25, 1), (0.0, 0), (1.0, 2)):
        clock.now += pause
        watch.tokens(tokens)
    watch.finished("stop")
    assert sums(registry, "vllm:time_to_first_token_seconds") == (1, 2.0)
    # Four tokens after the first; the last two came together and share their second.
    assert sums(registry, "vllm:inter_token_latency_seconds") == (4, pytest.approx(1.75))
    assert sums(registry, "vllm:time_per_output_token_seconds") == (4, pytest.approx(1.75))
    assert sums(registry, "vllm:e2e_request_latency_seconds") == (1, pytest.approx(3.75))
    assert sums(registry, "vllm:request_prompt_tokens") == (1, 7)
    assert sums(registry, "vllm:request_generation_tokens") == (1, 5)


def test_the_mean_follows_the_last_requests(registry: CollectorRegistry) -> None:
    latency = Latency(registry, "m")
    for _ in range(100):
        latency.finished(20.0, 1, 1, "length")
    assert latency.mean_request_s == pytest.approx(20.0, rel=0.01)
