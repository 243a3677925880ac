"""Sampling against transformers' own filters, and against the distribution it claims."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from kvtide_worker.engine.messages import ErrorKind, SamplingParams
from kvtide_worker.engine.request import Request
from kvtide_worker.engine.sampling import NoToken, Sampled, Sampler
from tests.worker.engine.distribution import assert_drawn_from, transformers_probabilities

CPU = torch.device("cpu")


def request(name: str = "a", prompt: list[int] | None = None, **sampling: Any) -> Request:
    return Request(name, 0, prompt or [1], SamplingParams(max_tokens=8, **sampling))


def draws(sampler: Sampler, logits: torch.Tensor, requests: list[Request]) -> list[int | None]:
    sampled = sampler.sample(logits, requests)
    return [token.token_id if isinstance(token, Sampled) else None for token in sampled]


def draw(sampler: Sampler, logits: torch.Tensor, who: Request) -> int:
    token = draws(sampler, logits[None], [who])[0]
    assert token is not None
    return token


def test_greedy_is_the_first_of_the_highest() -> None:
    logits = torch.tensor([[0.0, 3.0, 3.0, 1.0], [5.0, 3.0, 3.0, 1.0]])
    assert draws(Sampler(CPU), logits, [request("a", temperature=0.0), request("b", temperature=0.0)]) == [1, 0]


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    [
        (1.0, 0, 1.0, 0.0),
        (0.5, 0, 1.0, 0.0),
        (1.0, 5, 1.0, 0.0),
        (1.0, 0, 0.7, 0.0),
        (1.3, 20, 0.9, 0.0),
        (1.0, 1, 1.0, 0.0),
        (1.0, 0, 1e-9, 0.0),
        (1.2, 0, 1.0, 0.05),
        (1.2, 30, 0.95, 0.02),
        (1.0, 0, 1.0, 1.0),
    ],
)
@pytest.mark.slow
def test_draws_from_the_distribution_that_transformers_computes(
    temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    logits = torch.randn(1000, generator=torch.Generator().manual_seed(1)) * 3
    probabilities = transformers_probabilities(logits, temperature, top_k, top_p, min_p)

    sampler, who = Sampler(CPU), request(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=7)
    assert_drawn_from(probabilities, Counter(draw(sampler, logits, who) for _ in range(4000)))


def test_a_wide_nucleus_is_not_cut() -> None:
    """A flat distribution's nucleus is wider than the candidates that are looked at first."""
    sampler, who = Sampler(CPU), request(temperature=1.0, top_p=0.9, seed=3)
    seen = {draw(sampler, torch.zeros(1000), who) for _ in range(6000)}
    assert 800 < len(seen) <= 901


def test_a_seed_gives_the_same_tokens_whoever_shares_the_step() -> None:
    logits = torch.randn(50, generator=torch.Generator().manual_seed(2))
    alone, shared = Sampler(CPU), Sampler(CPU)
    seeded, other = request("seeded", temperature=1.0, seed=11), request("other", temperature=1.0)
    expected = [draw(alone, logits, seeded) for _ in range(20)]
    assert [draws(shared, torch.stack([logits, logits]), [other, seeded])[1] for _ in range(20)] == expected
    assert len(set(expected)) > 1


def test_without_a_seed_two_requests_differ() -> None:
    sampler, logits = Sampler(CPU), torch.zeros(1000)
    first = [draw(sampler, logits, request("a", temperature=1.0)) for _ in range(8)]
    assert first != [draw(sampler, logits, request("b", temperature=1.0)) for _ in range(8)]


@pytest.mark.parametrize("temperature", [1e-5, 1e-40, 1e-300])
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    assert draw(Sampler(CPU), torch.tensor([30.0, 31.0, -1e9]), request(temperature=temperature)) == 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_give_no_token(temperature: float) -> None:
    logits = torch.tensor([[0.0, float("nan")], [0.0, float("inf")], [0.0, 1.0], [0.0, float("-inf")]])
    requests = [request(str(row), temperature=temperature, top_k=1) for row in range(4)]
    assert draws(Sampler(CPU), logits, requests) == [None, None, 1, 0]
    (failure, *_) = Sampler(CPU).sample(logits, requests)
    assert failure == NoToken("the model gave logits that are not finite", ErrorKind.NOT_FINITE)
