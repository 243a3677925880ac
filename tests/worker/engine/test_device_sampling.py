"""Rows that are drawn from side by side, beside rows one after another: the same tokens of the same seeds."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from llguidance import LLMatcher
from torch.utils._python_dispatch import TorchDispatchMode

from kvtide_worker.engine.device_sampling import DeviceSampler, sampler_for
from kvtide_worker.engine.grammar import GrammarCompiler
from kvtide_worker.engine.messages import ErrorKind, SetVocabulary
from kvtide_worker.engine.request import Request
from kvtide_worker.engine.sampling import NoToken, Sampled, Sampler
from tests.worker.engine.distribution import assert_drawn_from, transformers_probabilities
from tests.worker.engine.test_sampling import CPU, draws, request

KINDS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 20},
    {"temperature": 1.3, "top_p": 0.9},
    {"temperature": 1.2, "min_p": 0.05},
    {"temperature": 1.1, "top_k": 30, "top_p": 0.95, "min_p": 0.02},
    {"temperature": 1.0, "top_k": 5000},
    {"temperature": 0.0, "logit_bias": {3: 50.0}},
    {"temperature": 1.0, "min_tokens": 4, "repetition_penalty": 1.3},
]


def logits_of(rows: int, vocab_size: int = 1000, seed: int = 1) -> torch.Tensor:
    return torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * 3


def asked(count: int) -> list[Request]:
    """Requests of every kind in turns, each with a seed of its own."""
    return [request(str(number), seed=number, **KINDS[number % len(KINDS)]) for number in range(count)]


@pytest.mark.parametrize("count", [1, 9, 40])
def test_tokens_are_those_of_rows_one_after_another(count: int) -> None:
    """Several blocks of a kind, and ones that are not full."""
    one_by_one, together = Sampler(CPU, (2,)), DeviceSampler(CPU, (2,))
    requests = asked(count)
    for step in range(6):
        logits = logits_of(count, seed=step)
        kept = logits.clone()
        assert together.sample(logits, requests) == one_by_one.sample(logits, requests)
        assert torch.equal(logits, kept)


def test_a_seed_gives_the_same_tokens_whoever_shares_the_step() -> None:
    logits = logits_of(30)
    together = draws(DeviceSampler(CPU), logits, asked(30))
    assert together == [draws(DeviceSampler(CPU), logits[row : row + 1], [asked(30)[row]])[0] for row in range(30)]


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    [(1.0, 0, 1.0, 0.0), (1.3, 20, 0.9, 0.0), (1.0, 0, 1e-9, 0.0), (1.2, 30, 0.95, 0.02), (1.0, 0, 1.0, 1.0)],
)
@pytest.mark.slow
def test_draws_from_the_distribution_that_transformers_computes(
    temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    logits = logits_of(1)
    probabilities = transformers_probabilities(logits[0], temperature, top_k, top_p, min_p)
    options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    requests = [request(str(seed), seed=seed, **options) for seed in range(400)]
    sampler, times = DeviceSampler(CPU), 4000
    rows = logits.expand(400, -1)
    seen = Counter(token for _ in range(10) for token in draws(sampler, rows, requests) if token is not None)
    assert seen.total() == times
    assert_drawn_from(probabilities, seen)


class Reads(TorchDispatchMode):
    """Counts what reads a number of a tensor: where the host would wait for a device."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors = 0
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert name not in ("nonzero", "masked_select", "unique"), "its size is known to the device alone"
        self.numbers += name in ("_local_scalar_dense", "is_nonzero", "equal")
        return func(*args, **(kwargs or {}))


def test_numbers_that_are_read_one_by_one_are_the_generators_own() -> None:
    """A random number is drawn by the host in its own memory, of each of the requests that draw; nothing else is."""
    requests = asked(27)
    sampler, logits = DeviceSampler(CPU), logits_of(27)
    with Reads() as reads:
        sampler.sample(logits, requests)
    assert reads.numbers == sum(one.sampling.temperature > 0 for one in requests)
    with Reads() as reads:
        Sampler(CPU).sample(logits, requests)
    assert reads.numbers > 27


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_give_no_token(temperature: float) -> None:
    logits = torch.tensor([[0.0, float("nan")], [0.0, float("inf")], [0.0, 1.0], [0.0, float("-inf")]])
    requests = [request(str(row), temperature=temperature, top_k=1) for row in range(4)]
    sampled = DeviceSampler(CPU).sample(logits, requests)
    failure = NoToken("the model gave logits that are not finite", ErrorKind.NOT_FINITE)
    assert sampled == [failure, failure, Sampled(1), Sampled(0)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rules_that_leave_nothing_end_their_request_alone(temperature: float) -> None:
    logits = torch.tensor([[-torch.inf, 1.0], [0.0, 1.0]])
    # The only token there is ends the text, and must not come yet.
    requests = [request("a", temperature=temperature, min_tokens=2), request("b", temperature=0.0)]
    nothing, other = DeviceSampler(CPU, (1,)).sample(logits, requests)
    assert nothing == NoToken("what the request asks for leaves no token to choose", ErrorKind.GRAMMAR)
    assert other == Sampled(1)


def test_a_grammar_masks_and_goes_on() -> None:
    words = [b"<end>", b"y", b"e", b"s", b"n", b"o"]
    compiler = GrammarCompiler()
    compiler.set_vocabulary(SetVocabulary(words, [0], [0]))
    one = request("a", temperature=1.0, seed=1)
    compiler.begin(one, LLMatcher.grammar_from_regex("yes"))
    compiler.wait(10)
    compiler.take()
    sampler = DeviceSampler(CPU, (0,))
    assert [draws(sampler, torch.zeros(1, 6), [one])[0] for _ in range(3)] == [1, 2, 3]


def test_log_probabilities_are_of_the_models_own_logits() -> None:
    """log softmax of (0, log 3): 1/4 and 3/4."""
    logits = torch.tensor([[1.0, 3.0]]).log()
    (sampled,) = DeviceSampler(CPU).sample(logits, [request(temperature=0.0, logprobs=1, logit_bias={0: 9.0})])
    assert isinstance(sampled, Sampled)
    assert sampled.logprobs is not None
    assert sampled.token_id == 0
    assert sampled.logprobs.logprob == pytest.approx(torch.tensor(0.25).log().item())


def test_a_request_that_is_forgotten_begins_anew() -> None:
    sampler, logits = DeviceSampler(CPU), torch.zeros(1, 1000)
    first = draws(sampler, logits, [request(temperature=1.0, seed=5)])
    sampler.forget("a")
    assert draws(sampler, logits, [request(temperature=1.0, seed=5)]) == first


def test_each_device_has_its_sampler() -> None:
    assert isinstance(sampler_for(CPU), Sampler)
    assert isinstance(sampler_for(torch.device("cuda")), DeviceSampler)
