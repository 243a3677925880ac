"""Penalties, biases and shortest lengths, against transformers and the formulas that OpenAI documents."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor

from kvtide_worker.engine.logit_rules import rules_of
from kvtide_worker.engine.messages import SamplingParams
from kvtide_worker.engine.request import Request
from kvtide_worker.engine.sampling import NoToken, Sampled, Sampler

CPU = torch.device("cpu")
VOCAB = 300


def request(prompt: list[int], output: list[int], **sampling: Any) -> Request:
    return Request("a", 0, prompt, SamplingParams(max_tokens=500, **sampling), list(output))


def logits_of(seed: int) -> torch.Tensor:
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


def ruled(who: Request, logits: torch.Tensor, eos: tuple[int, ...] = ()) -> torch.Tensor:
    rules = rules_of(who, eos, CPU)
    assert rules is not None
    changed = logits.clone()
    rules.apply(changed)
    return changed


def test_a_request_that_asks_for_nothing_has_no_rules() -> None:
    assert rules_of(request([1], [2], temperature=0.7, top_p=0.5, seed=3), (2,), CPU) is None


@pytest.mark.parametrize("penalty", [1.3, 0.8])
def test_repetition_is_penalised_as_transformers_does(penalty: float) -> None:
    prompt, output, logits = [3, 5, 3, 250], [7, 9, 7], logits_of(1)
    expected = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([prompt + output]), logits[None].clone())[0]
    torch.testing.assert_close(ruled(request(prompt, output, repetition_penalty=penalty), logits), expected)


def test_frequency_and_presence_are_openais_formula() -> None:
    """mu[j] - c[j] * alpha_frequency - (c[j] > 0) * alpha_presence, over what was generated: not over the prompt."""
    logits = logits_of(2)
    expected = logits.clone()
    expected[7] -= 2 * 0.4 + 0.9
    expected[9] -= 1 * 0.4 + 0.9
    who = request([3, 5, 9], [7, 9, 7], frequency_penalty=0.4, presence_penalty=0.9)
    torch.testing.assert_close(ruled(who, logits), expected)


def test_counts_grow_with_the_answer_however_long_it_gets() -> None:
    who = request([0, 1], [], frequency_penalty=0.5)
    rules = rules_of(who, (), CPU)
    assert rules is not None
    generated = torch.randint(VOCAB, (400,), generator=torch.Generator().manual_seed(3)).tolist()
    for length in range(1, 401):
        who.output_token_ids.append(generated[length - 1])
        changed = torch.zeros(VOCAB)
        rules.apply(changed)
        counts = torch.bincount(torch.tensor(generated[:length]), minlength=VOCAB)
        torch.testing.assert_close(changed, -0.5 * counts)


def test_a_bias_is_added_and_a_hundred_decides() -> None:
    logits = logits_of(4)
    best = int(logits.argmax())
    changed = ruled(request([1], [], logit_bias={best: -100.0, 17: 2.5}), logits)
    assert changed[best] == logits[best] - 100
    assert changed[17] == logits[17] + 2.5
    assert torch.equal(changed[18:200], logits[18:200]) or best in range(18, 200)
    sampled = Sampler(CPU).sample(logits[None], [request([1], [], temperature=0.0, logit_bias={42: 100.0})])
    assert sampled == [Sampled(42)]


def test_no_end_before_min_tokens() -> None:
    logits = logits_of(5)
    logits[2], logits[8] = 50.0, 40.0
    early = request([1], [4], temperature=0.0, min_tokens=2, stop_token_ids=(8,))
    late = request([1], [4, 4], temperature=0.0, min_tokens=2, stop_token_ids=(8,))
    (first,) = Sampler(CPU, (2,)).sample(logits[None], [early])
    assert isinstance(first, Sampled)
    assert first.token_id not in (2, 8)
    assert Sampler(CPU, (2,)).sample(logits[None], [late]) == [Sampled(2)]


def test_rules_change_their_own_row_only() -> None:
    logits = torch.stack([logits_of(6), logits_of(6)])
    best = int(logits[0].argmax())
    ruled_one = request([1], [], temperature=0.0, logit_bias={best: -100.0})
    plain = Request("b", 1, [1], SamplingParams(max_tokens=5, temperature=0.0))
    before = logits.clone()
    first, second = Sampler(CPU).sample(logits, [ruled_one, plain])
    assert second == Sampled(best)
    assert isinstance(first, Sampled)
    assert first.token_id == int(logits[0].topk(2).indices[1])
    assert torch.equal(logits, before)


def test_where_no_token_is_left_the_request_ends() -> None:
    logits = torch.full((1, 4), -torch.inf)
    logits[0, 2] = 0.0
    (none_left,) = Sampler(CPU, (2,)).sample(logits, [request([1], [], temperature=0.0, min_tokens=1)])
    assert isinstance(none_left, NoToken)
