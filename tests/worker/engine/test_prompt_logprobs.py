"""Log probabilities of prompts and answers through whole steps, against transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from kvtide_worker.engine.messages import AddRequest, TokenLogprobs
from tests.worker.engine.harness import greedy, load, run
from tests.worker.models.tiny import save_tiny_llama

PROMPT = list(range(40, 110))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny_llama(folder)
    return folder


def expected_scores(model: Path, tokens: list[int]) -> torch.Tensor:
    """transformers' log probabilities [tokens, vocab_size] after each token."""
    with torch.no_grad():
        return LlamaForCausalLM.from_pretrained(model)(torch.tensor([tokens])).logits[0].log_softmax(-1)


def check(told: list[TokenLogprobs], tokens: list[int], scores: torch.Tensor, top: int) -> None:
    assert [place.token_id for place in told] == tokens
    for place, row in zip(told, scores, strict=True):
        assert place.logprob == pytest.approx(float(row[place.token_id]), abs=1e-3)
        assert [value for _, value in place.top] == pytest.approx(row.topk(top).values.tolist(), abs=1e-3)


@pytest.mark.parametrize("batch_limit", [1, 4, 16])
def test_every_prompt_token_is_scored_however_few_rows_a_step_has(model: Path, batch_limit: int) -> None:
    engine = load(model, batch_limit=batch_limit)
    rows: list[int] = []
    forward = engine._model.forward

    def counted(tokens: torch.Tensor, positions: torch.Tensor, step: object, wanted: torch.Tensor) -> torch.Tensor:
        rows.append(len(wanted))
        return forward(tokens, positions, step, wanted)  # type: ignore[arg-type]

    engine._model.forward = counted  # type: ignore[method-assign]
    engine.add(AddRequest("a", PROMPT, greedy(6, logprobs=2, prompt_logprobs=3)))
    engine.add(AddRequest("b", PROMPT[:30], greedy(4, prompt_logprobs=0)))
    outputs = run(engine)
    assert max(rows) <= batch_limit

    first = next(output for output in outputs if output.request_id == "a")
    answer = [token for output in outputs if output.request_id == "a" for token in output.token_ids]
    scores = expected_scores(model, PROMPT + answer)
    assert first.prompt_logprobs is not None
    check(first.prompt_logprobs, PROMPT[1:], scores[: len(PROMPT) - 1], 3)
    told = [place for output in outputs if output.request_id == "a" for place in output.logprobs or []]
    check(told, answer, scores[len(PROMPT) - 1 : -1], 2)
    assert all(place.rank == 1 for place in told)

    second = next(output for output in outputs if output.request_id == "b")
    assert second.prompt_logprobs is not None
    check(second.prompt_logprobs, PROMPT[1:30], expected_scores(model, PROMPT[:30])[:-1], 0)
    assert second.logprobs is None


def test_preemption_scores_nothing_twice(model: Path) -> None:
    engine = load(model, num_blocks=16)
    for index in range(3):
        engine.add(AddRequest(str(index), PROMPT[: 60 + index], greedy(60, prompt_logprobs=0)))
    outputs = run(engine)
    assert engine.state().preemptions > 0
    scores = expected_scores(model, PROMPT)
    told = {output.request_id: output.prompt_logprobs for output in outputs if output.prompt_logprobs is not None}
    for index in range(3):
        check(told[str(index)], PROMPT[1 : 60 + index], scores[: 59 + index], 0)


def test_a_prompt_of_one_token_has_nothing_to_score(model: Path) -> None:
    engine = load(model)
    engine.add(AddRequest("a", [7], greedy(2, prompt_logprobs=1)))
    assert run(engine)[0].prompt_logprobs == []
