"""The step, with a tiny model that is real in everything but size."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from kvtide_sizing.errors import InvalidPlan, ModelNotFound, UnsupportedPrecision
from kvtide_worker.engine.config import EngineConfig
from kvtide_worker.engine.engine import Engine
from kvtide_worker.engine.load import load_engine
from kvtide_worker.engine.messages import AddRequest, FinishReason, TokenOutput
from tests.worker.engine.harness import calibration, generate, greedy, load, plan_for, run
from tests.worker.models.tiny import save_tiny_llama

PROMPTS = [[7, 8, 9], list(range(20, 60)), [300], list(range(100, 116)), list(range(250, 150, -3))]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny_llama(folder)
    return folder


@pytest.fixture(scope="module")
def expected(model: Path) -> list[list[int]]:
    """transformers' greedy tokens, 24 of each prompt."""
    reference = LlamaForCausalLM.from_pretrained(model)
    results = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        tokens = reference.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=24,
            eos_token_id=None,
            pad_token_id=0,
        )
        results.append(tokens[0, len(prompt) :].tolist())
    return results


def all_free(engine: Engine) -> bool:
    state = engine.state()
    return state.live_blocks == state.live_tokens == state.running == state.waiting == 0


def test_tokens_equal_transformers(model: Path, expected: list[list[int]]) -> None:
    engine = load(model)
    assert [generate(engine, [prompt], 24)[0] for prompt in PROMPTS] == expected
    assert generate(engine, PROMPTS, 24) == expected
    assert all_free(engine)


def test_preemption_changes_no_token(model: Path, expected: list[list[int]]) -> None:
    """The longest request takes four blocks of the five: others are put back, computed again, and go on."""
    engine = load(model, num_blocks=5, max_context=80)
    assert generate(engine, PROMPTS, 24) == expected
    assert engine.state().preemptions > 0
    assert all_free(engine)


def test_a_limit_changes_no_token(model: Path, expected: list[list[int]]) -> None:
    engine = load(model)
    for index, prompt in enumerate(PROMPTS):
        engine.add(AddRequest(str(index), prompt, greedy(24)))
    outputs = []
    for limit in (5, 1, 3, 2, 5):
        engine.set_batch_limit(limit)
        for _ in range(4):
            outputs += engine.step()
        assert engine.state().running <= limit
    outputs += run(engine)
    for index, tokens in enumerate(expected):
        assert [token for output in outputs if output.request_id == str(index) for token in output.token_ids] == tokens


def test_stops(model: Path, expected: list[list[int]]) -> None:
    """At a stop token, which is among the output; at the length; at the model's end-of-sequence unless ignored."""
    engine, tokens = load(model), expected[1]
    stop = tokens[5]
    first = tokens.index(stop) + 1
    engine.add(AddRequest("stop", PROMPTS[1], greedy(24, stop_token_ids=(stop,))))
    engine.add(AddRequest("length", PROMPTS[1], greedy(3)))
    ends = {output.request_id: output for output in run(engine) if output.finish_reason}
    assert ends["stop"] == TokenOutput("stop", [stop], FinishReason.STOP)
    assert ends["length"] == TokenOutput("length", [tokens[2]], FinishReason.LENGTH)
    assert engine.state().generation_tokens == first + 3


@pytest.mark.parametrize(("ignore_eos", "length", "reason"), [(False, 1, "stop"), (True, 6, "length")])
def test_end_of_sequence(tmp_path: Path, expected: list[list[int]], ignore_eos: bool, length: int, reason: str) -> None:
    save_tiny_llama(tmp_path, eos_token_id=expected[0][0])
    engine = load(tmp_path)
    engine.add(AddRequest("a", PROMPTS[0], greedy(6, ignore_eos=ignore_eos)))
    outputs = run(engine)
    assert len(outputs) == length
    assert outputs[-1].finish_reason == reason


def test_abort_frees_the_blocks_at_once(model: Path) -> None:
    engine = load(model)
    engine.add(AddRequest("runs", PROMPTS[1], greedy(24)))
    engine.step()
    engine.add(AddRequest("waits", PROMPTS[1], greedy(24)))
    assert engine.state().live_blocks == 3
    for name in ("runs", "waits", "unknown"):
        engine.abort(name)
    assert all_free(engine)
    assert not engine.has_work


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "message"),
    [
        ([1] * 200, 100, "needs 300 tokens (prompt 200, max_tokens 100) but the context limit is 256"),
        ([], 4, "needs a prompt of at least 1 token"),
        ([5, 320], 4, "token ids outside the model's vocabulary, which is 0 to 319"),
        ([5, -1], 4, "token ids outside the model's vocabulary, which is 0 to 319"),
    ],
)
def test_what_can_never_run_is_an_error_at_once(model: Path, prompt: list[int], max_tokens: int, message: str) -> None:
    engine = load(model)
    engine.add(AddRequest("good", [5], greedy(2)))
    engine.add(AddRequest("bad", prompt, greedy(max_tokens)))
    first = engine.step()[0]
    assert (first.request_id, first.token_ids, first.finish_reason) == ("bad", [], FinishReason.ERROR)
    assert message in (first.error or "")
    assert [output.finish_reason for output in run(engine)] == [FinishReason.LENGTH]
    assert engine.state().requests == 1


def test_a_step_that_fails_ends_its_own_requests_only(
    model: Path, expected: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = load(model, batch_limit=1)
    engine.add(AddRequest("fails", PROMPTS[0], greedy(4)))
    engine.add(AddRequest("waits", PROMPTS[1], greedy(24)))
    with monkeypatch.context() as patch:
        patch.setattr(
            "kvtide_worker.models.decoder.Decoder.embed",
            lambda *tokens: (_ for _ in ()).throw(RuntimeError("no memory")),
        )
        outputs = engine.step()
    assert outputs == [TokenOutput("fails", [], FinishReason.ERROR, "the step failed: no memory")]
    assert engine.state().cached_blocks == 0
    assert [token for output in run(engine) for token in output.token_ids] == expected[1]
    assert all_free(engine)


def test_a_model_that_overflows_is_an_error(tmp_path: Path) -> None:
    broken = save_tiny_llama(tmp_path)
    torch.nn.init.constant_(broken.lm_head.weight, float("inf"))
    broken.save_pretrained(tmp_path)
    with pytest.raises(RuntimeError, match="gave no first token: the model gave logits that are not finite"):
        load(tmp_path)


def test_state_counts(model: Path) -> None:
    engine = load(model, batch_limit=1)
    engine.add(AddRequest("a", list(range(40)), greedy(10)))
    engine.add(AddRequest("b", list(range(7)), greedy(5)))
    engine.step()
    engine.step()
    state = engine.state()
    assert (state.running, state.waiting, state.batch_limit, state.max_batch_limit) == (1, 1, 1, 1)
    # a: 40 of the prompt and the first generated token are written, two are generated
    assert (state.live_tokens, state.live_blocks, state.queued_prompt_tokens) == (41, 3, 7)
    assert state.expected_output_tokens == 8 + 5
    assert (state.prompt_tokens, state.generation_tokens, state.requests) == (40, 2, 2)
    assert state.last_step_seconds > 0
    memory = state.memory
    assert (
        memory.kv_pool_bytes == 64 * 16 * 2 * 2 * 2 * 16 * 4
    )  # blocks, slots, layers, K and V, heads, head_dim, float32
    assert memory.device_bytes == (
        memory.weights_bytes + memory.kv_pool_bytes + memory.activations_bytes + memory.other_bytes + memory.free_bytes
    )


@pytest.mark.parametrize(
    ("section", "changes", "error", "message"),
    [
        ("kv", {"precision": "FP8"}, UnsupportedPrecision, "stores KV as FP8; this worker stores BF16, INT8, Mixed"),
        ("kv", {"precision": "INT8"}, InvalidPlan, "precision is INT8, but not all of its layers are stored so"),
        ("kv", {"bytesPerToken": 512}, InvalidPlan, "for 512 bytes of KV a token, but the model takes 256"),
        (
            "attention",
            {"kvHeads": 1, "nativeKvHeads": 1},
            InvalidPlan,
            "for 4 query heads over 1 KV heads, but the model has 4 over 2",
        ),
        ("", {"maxContextTokens": 1024}, InvalidPlan, "a context of 1024 tokens, but the model was trained for 512"),
        ("", {"batchLimit": None}, InvalidPlan, "not a plan"),
    ],
)
def test_refuses_a_plan_for_something_else(
    model: Path, section: str, changes: dict[str, object], error: type[Exception], message: str
) -> None:
    plan = plan_for(model, num_blocks=8, block_size=16, max_context=64, batch_limit=2)
    (plan[section] if section else plan).update(changes)
    with pytest.raises(error, match=message):
        load_engine(EngineConfig(f"file://{model}", plan), lambda stage: None, calibration)


def test_refuses_a_pool_that_one_sequence_would_outgrow(model: Path) -> None:
    load(model, num_blocks=5, max_context=80)
    with pytest.raises(InvalidPlan, match="one sequence of 81 tokens needs 6 blocks of 16, but the plan's pool has 5"):
        load(model, num_blocks=5, max_context=81)


def test_says_what_it_does_while_it_loads(model: Path) -> None:
    plan = plan_for(model, num_blocks=8, block_size=16, max_context=64, batch_limit=2)
    stages: list[str] = []
    load_engine(EngineConfig(f"file://{model}", plan), stages.append, calibration)
    assert stages == [
        "finding the model",
        "preparing the kernels",
        "loading weights",
        "allocating the KV pool",
        "measuring a full step",
        "generating the first token",
    ]
    with pytest.raises(ModelNotFound, match="there is nothing at /nowhere"):
        load_engine(EngineConfig("file:///nowhere", plan), stages.append, calibration)
