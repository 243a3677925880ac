"""Grammars: compiled beside the steps, applied to their own row, and ended alone when they fail."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import jsonschema
import pytest
import torch
from llguidance import LLMatcher

from kvtide_worker.engine.engine import Engine
from kvtide_worker.engine.grammar import GrammarCompiler
from kvtide_worker.engine.messages import (
    AddRequest,
    ErrorKind,
    FinishReason,
    SamplingParams,
    SetVocabulary,
    TokenOutput,
)
from kvtide_worker.engine.request import Request
from kvtide_worker.engine.sampling import Sampled, Sampler
from tests.worker.engine.harness import greedy, load, run
from tests.worker.models.tiny import save_tiny_llama

# 256 bytes, some words, an end, and room to spare as padded models have it.
WORDS = [bytes([byte]) for byte in range(256)] + [b'{"', b'":', b"name", b"true", b" ", b"", b"</s>"]
EOS = len(WORDS) - 1
VOCABULARY = SetVocabulary(WORDS, special_ids=[EOS], eos_token_ids=[EOS])

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "old": {"type": "boolean"}},
    "required": ["name", "old"],
    "additionalProperties": False,
}


def schema(of: dict) -> str:
    return LLMatcher.grammar_from_json_schema(of, overrides={"whitespace_flexible": False})


def text_of(token_ids: list[int]) -> str:
    return b"".join(WORDS[token] for token in token_ids if token != EOS).decode(errors="replace")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny_llama(folder)
    return folder


@pytest.fixture
def engine(model: Path) -> Engine:
    loaded = load(model)
    loaded.set_vocabulary(VOCABULARY)
    return loaded


def all_free(engine: Engine) -> bool:
    state = engine.state()
    return state.live_blocks == state.running == state.waiting == 0 and not engine.has_work


def collect(outputs: list[TokenOutput]) -> dict[str, list[int]]:
    tokens: dict[str, list[int]] = {}
    for output in outputs:
        assert output.error is None
        tokens.setdefault(output.request_id, []).extend(output.token_ids)
    return tokens


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_a_random_model_writes_what_the_schema_says(engine: Engine, temperature: float) -> None:
    for seed in range(6):
        sampling = SamplingParams(max_tokens=60, temperature=temperature, seed=seed)
        engine.add(AddRequest(str(seed), [seed + 3, 9], sampling, schema(PERSON)))
    outputs = run(engine)
    for token_ids in collect(outputs).values():
        jsonschema.validate(json.loads(text_of(token_ids)), PERSON)
    assert [output.finish_reason for output in outputs if output.finish_reason] == [FinishReason.STOP] * 6
    assert all_free(engine)


def test_a_neighbours_grammar_changes_no_token(model: Path) -> None:
    alone, together = load(model), load(model)
    alone.add(AddRequest("free", [5, 6, 7], greedy(20)))
    together.set_vocabulary(VOCABULARY)
    together.add(AddRequest("bound", [5, 6, 7], greedy(20), LLMatcher.grammar_from_regex("[ab]{20,30}")))
    together.add(AddRequest("free", [5, 6, 7], greedy(20)))
    tokens = collect(run(together))
    assert tokens["free"] == collect(run(alone))["free"]
    assert re.fullmatch("[ab]{20}", text_of(tokens["bound"]))


def test_a_grammar_survives_preemption(model: Path) -> None:
    roomy, tight = load(model), load(model, num_blocks=18)
    for engine in (roomy, tight):
        engine.set_vocabulary(VOCABULARY)
        for index in range(4):
            engine.add(AddRequest(str(index), [index + 3] * 30, greedy(80), LLMatcher.grammar_from_regex("[a-z ]{90}")))
    assert collect(run(tight)) == collect(run(roomy))
    assert tight.state().preemptions > 0


@pytest.mark.parametrize(
    ("grammar", "says"),
    [
        (schema({"type": "strng"}), "Invalid type: strng"),
        (LLMatcher.grammar_from_regex("("), "unclosed group"),
        ("no grammar at all", ""),
    ],
)
def test_a_grammar_that_is_none_ends_its_own_request(engine: Engine, grammar: str, says: str) -> None:
    engine.add(AddRequest("bad", [3], greedy(5), grammar))
    engine.add(AddRequest("good", [3], greedy(5)))
    outputs = run(engine)
    (failed,) = [output for output in outputs if output.error]
    assert (failed.request_id, failed.finish_reason, failed.kind) == ("bad", FinishReason.ERROR, ErrorKind.GRAMMAR)
    assert says in (failed.error or "")
    assert sum(len(output.token_ids) for output in outputs if output.request_id == "good") == 5
    assert all_free(engine)


def test_an_abort_while_it_is_compiled_frees_everything(engine: Engine) -> None:
    engine.add(AddRequest("a", [3], greedy(5), schema(PERSON)))
    assert engine.state().waiting == 1
    engine.abort("a")
    assert all_free(engine)
    assert run(engine) == []


def test_a_grammar_that_takes_too_long_is_told_so_while_others_run() -> None:
    now = [0.0]
    compiler = GrammarCompiler(timeout_s=3, clock=lambda: now[0])
    release = time.monotonic() + 0.5

    class SlowWords:
        """A vocabulary that is not read at once."""

        eos_token_ids = (EOS,)
        special_ids = (EOS,)

        @property
        def token_bytes(self) -> list[bytes]:
            time.sleep(max(0, release - time.monotonic()))
            return WORDS

    compiler.set_vocabulary(SlowWords())  # type: ignore[arg-type]
    request = Request("a", 0, [1], greedy(5))
    compiler.begin(request, schema(PERSON))
    assert compiler.take() == []
    now[0] = 3.0
    ((taken, failure),) = compiler.take()
    assert taken is request
    assert failure is not None
    assert failure.kind is ErrorKind.GRAMMAR_TIMEOUT
    assert "3 s" in failure.error
    assert len(compiler) == 0


@pytest.mark.parametrize(
    "regex", ["(a{1,5000}){1,5000}", "(.*a){200}x", "((a|b)*c(a|b){30}){40}", "[^x]*(x.{200}y){100}"]
)
def test_what_is_made_to_be_expensive_is_bounded(regex: str) -> None:
    """In time and in memory: either it is refused, or each mask stays in the time of a step."""
    compiler = GrammarCompiler()
    compiler.set_vocabulary(VOCABULARY)
    request = Request("a", 0, [1], greedy(5))
    compiler.begin(request, LLMatcher.grammar_from_regex(regex))
    started = time.monotonic()
    compiler.wait(10)
    ((_, failure),) = compiler.take()
    assert time.monotonic() - started < 5
    if failure is None:
        assert request.grammar is not None
        for _ in range(5):
            row = torch.zeros(len(WORDS))
            if request.grammar.mask(row) is not None:
                break
            request.grammar.accept(int(row.argmax()))
        assert time.monotonic() - started < 5


def test_ids_that_the_tokenizer_does_not_have_are_never_chosen() -> None:
    compiler = GrammarCompiler()
    compiler.set_vocabulary(VOCABULARY)
    sampling = SamplingParams(max_tokens=5, temperature=0.0)
    request = Request("a", 0, [1], sampling)
    compiler.begin(request, LLMatcher.grammar_from_regex("yes|no"))
    compiler.wait(10)
    compiler.take()
    logits = torch.zeros(1, len(WORDS) + 57)
    logits[0, -1] = 50.0
    (sampled,) = Sampler(torch.device("cpu")).sample(logits, [request])
    assert isinstance(sampled, Sampled)
    assert WORDS[sampled.token_id] in (b"y", b"n")
