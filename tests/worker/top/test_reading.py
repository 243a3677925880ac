"""What is made of a scrape, by rows."""

from math import inf

import pytest

from kvtide_worker.top.rates import rates
from kvtide_worker.top.reading import Buckets, NotAWorker, Reading, read


# As Prometheus' histogram_quantile: linear within the bucket, the highest finite bound beyond it.
@pytest.mark.parametrize(
    ("counts", "share", "seconds"),
    [
        ((0, 10, 10, 10), 0.5, 1.5),  # all ten between 1 and 2 s: the fifth is half-way
        ((10, 20, 20, 20), 0.5, 1.0),  # ten under 1 s are half of all
        ((4, 4, 8, 8), 0.75, 3.0),  # two of the four between 2 and 4 s
        ((0, 0, 0, 5), 0.5, 4.0),  # all of them beyond the last bound
        ((0, 0, 0, 0), 0.5, None),
    ],
)
def test_a_quantile_is_prometheus_own(counts: tuple[int, ...], share: float, seconds: float | None) -> None:
    assert Buckets((1.0, 2.0, 4.0, inf), counts).quantile(share) == seconds


def reading(at: float, generated: int, hits: int = 0, queries: int = 0, slow: int = 0) -> Reading:
    return read(
        f"""
vllm:num_requests_running{{model_name="m"}} 3
kvtide_kv_blocks{{model_name="m",state="live"}} 30
kvtide_kv_blocks{{model_name="m",state="cached"}} 10
kvtide_kv_blocks{{model_name="m",state="free"}} 60
kvtide_memory_bytes{{component="weights",model_name="m",source="predicted"}} 100
kvtide_memory_bytes{{component="weights",model_name="m",source="measured"}} 110
# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total{{model_name="m"}} {generated}
# TYPE vllm:prefix_cache_queries counter
vllm:prefix_cache_queries_total{{model_name="m"}} {queries}
# TYPE vllm:prefix_cache_hits counter
vllm:prefix_cache_hits_total{{model_name="m"}} {hits}
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{{le="1.0",model_name="m"}} 5
vllm:time_to_first_token_seconds_bucket{{le="3.0",model_name="m"}} {5 + slow}
vllm:time_to_first_token_seconds_bucket{{le="+Inf",model_name="m"}} {5 + slow}
""",
        at,
    )


def test_a_scrape_is_read_by_its_labels() -> None:
    one = reading(0.0, 10)
    assert (one.model, one.running, one.usage) == ("m", 3, 0.3)
    assert (one.predicted, one.measured) == ({"weights": 100}, {"weights": 110})


def test_rates_are_of_what_came_between_two_readings() -> None:
    of = rates(reading(10.0, 100, hits=5, queries=20), reading(14.0, 300, hits=35, queries=60, slow=4))
    assert of.output_tokens == 50.0  # 200 tokens in 4 s
    assert of.hit_share == 0.75  # 30 of 40
    assert of.first_token_p50 == 2.0  # the four that came lie between 1 and 3 s


def test_a_worker_that_restarted_counts_from_zero() -> None:
    assert rates(reading(0.0, 1000), reading(2.0, 60)).output_tokens == 30.0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("<html>hello</html>", "not in Prometheus' text format"),
        ('vllm:num_requests_running{model_name="m"} 3\n', "kvtide_kv_blocks"),
        ("", "not loaded yet"),
    ],
)
def test_what_is_no_workers_is_said(text: str, says: str) -> None:
    with pytest.raises(NotAWorker, match=says):
        read(text, 0.0)
