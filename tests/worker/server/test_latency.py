"""The latency histograms, with a clock that the test moves."""

import random

import pytest
from prometheus_client import CollectorRegistry

from kvtide_worker.server.latency import Latency, RequestWatch
from kvtide_worker.server.recent import RecentValues


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


@pytest.mark.parametrize("part", [0.5, 0.95, 1.0])
def test_quantiles_are_those_of_the_values_themselves(part: float) -> None:
    """The nearest rank: of 1,000 values the 950th is what 95 of 100 are not above."""
    values = RecentValues(Clock())
    generator = random.Random(1)
    drawn = [generator.lognormvariate(-2, 1.5) for _ in range(1000)]
    for value in drawn:
        values.add(value)
    assert values.quantile(part) == pytest.approx(sorted(drawn)[round(part * 1000) - 1], rel=0.05)


def test_what_came_a_minute_ago_is_forgotten() -> None:
    clock = Clock()
    values = RecentValues(clock)
    assert values.quantile(0.95) is None
    values.add(10.0, 99)
    clock.now += 30
    values.add(0.1)
    assert values.quantile(0.95) == pytest.approx(10.0, rel=0.05)
    clock.now += 30
    assert values.quantile(0.95) == pytest.approx(0.1, rel=0.05)
    clock.now += 30
    assert values.quantile(0.95) is None


def test_the_last_minute_has_both_latencies(registry: CollectorRegistry) -> None:
    clock = Clock()
    latency = Latency(registry, "m", clock)
    assert (latency.recent.first_token_p95, latency.recent.output_token_p95) == (None, None)
    watch = latency.watch(prompt_tokens=3)
    clock.now += 2
    watch.tokens(1)
    clock.now += 1
    watch.tokens(4)
    recent = latency.recent
    assert recent.first_token_p95 == pytest.approx(2.0, rel=0.05)
    assert recent.output_token_p95 == pytest.approx(0.25, rel=0.05)
    assert recent.window_seconds == 60
