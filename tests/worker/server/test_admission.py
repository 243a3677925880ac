"""Admission as rows: what is too much now, and the numbers in the refusals."""

import pytest

from kvtide_worker.server.admission import AdmissionLimits, Capacity, Queue, overload

ROOMY = Capacity(pool_tokens=10240, max_batch=16)


@pytest.mark.parametrize(
    ("requests", "tokens", "queue", "taken"),
    [
        (1, 100, Queue(0, 0, 1.0), True),
        (64, 99_999, Queue(0, 0, 1.0), True),  # an empty queue takes what can fit at all
        (1, 100, Queue(127, 1000, 1.0), True),
        (1, 100, Queue(128, 1000, 1.0), False),  # eight batches of 16
        (1, 960, Queue(10, 40_000, 1.0), True),
        (1, 961, Queue(10, 40_000, 1.0), False),  # four pools of 10240
    ],
)
def test_how_much_may_wait(requests: int, tokens: int, queue: Queue, taken: bool) -> None:
    assert (overload(requests, tokens, queue, ROOMY) is None) is taken


@pytest.mark.parametrize(
    ("mean_request_s", "expected"),
    [(0.01, 1), (2.0, 8), (600.0, 60)],  # half of 128 waiting is four batches of 16
)
def test_when_to_come_back(mean_request_s: float, expected: int) -> None:
    refused = overload(1, 1, Queue(128, 128, mean_request_s), ROOMY)
    assert refused is not None
    assert refused.retry_after_s == expected
    assert "128 requests" in refused.message


def test_limits_that_were_set_are_told() -> None:
    waits = Queue(requests=3, prompt_tokens=30, mean_request_s=1.0)
    limits = AdmissionLimits(waiting_requests=3, waiting_prompt_tokens=40)
    assert overload(1, 5, waits, ROOMY) is None
    assert overload(0, 10, waits, ROOMY, limits) is None
    for requests, tokens in ((1, 5), (0, 11)):
        refused = overload(requests, tokens, waits, ROOMY, limits)
        assert refused is not None
        assert "at most 3 requests or 40 tokens may" in refused.message
