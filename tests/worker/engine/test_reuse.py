"""What is found instead of computed, with tiny models: the same logits, bit for bit, where KV is stored in BF16."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kvtide_worker.engine.engine import Engine
from kvtide_worker.engine.messages import AddRequest, ErrorKind, FinishReason, SamplingParams, TokenOutput
from kvtide_worker.engine.prefix_cache import ALIGNED_TOKENS
from tests.worker.engine.harness import greedy, load, run, some_tokens
from tests.worker.models.tiny import save_tiny

# The kernels serve heads of 64 and more: smaller ones would be attended to in plain torch, which sums otherwise.
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {"head_dim": 64, "max_position_embeddings": 1024},
    "gemma3": {"head_dim": 64, "query_pre_attn_scalar": 64, "sliding_window": 40, "max_position_embeddings": 1024},
}
TEXT = some_tokens()


@pytest.fixture(scope="module", params=list(SHAPES))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    save_tiny(folder, request.param, **SHAPES[request.param])
    return folder


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    save_tiny(folder, "llama", **SHAPES["llama"])
    return folder


class Watched:
    """An engine whose sampled logits are kept."""

    def __init__(self, model: Path, **options: Any) -> None:
        self.engine = load(
            model, dtype=options.pop("dtype", "bfloat16"), **{"num_blocks": 200, "max_context": 900, **options}
        )
        self.logits: list[torch.Tensor] = []
        self._names = 0
        sample = self.engine._sampler.sample

        def keep(logits: torch.Tensor, requests: Any) -> Any:
            self.logits += list(logits.clone())
            return sample(logits, requests)

        self.engine._sampler.sample = keep  # type: ignore[method-assign]

    def answer(self, prompt: list[int], tokens: int = 3, **options: Any) -> tuple[torch.Tensor, int]:
        """Logits [tokens, vocab_size] of a request alone, and how much of its prompt was found."""
        self.logits, self._names = [], self._names + 1
        self.engine.add(AddRequest(f"request-{self._names}", prompt, greedy(tokens), **options))
        outputs = run(self.engine)
        assert [output.error for output in outputs] == [None] * tokens
        return torch.stack(self.logits), outputs[0].cached_tokens


def expected_hit(length: int, block_size: int) -> int:
    unit = max(ALIGNED_TOKENS, block_size)
    return (length - 2) // unit * unit


@pytest.mark.slow
@pytest.mark.parametrize("block_size", [16, 64, 128])
def test_cold_and_warm_logits_are_equal_in_every_bit(model: Path, block_size: int) -> None:
    """Prompts of all lengths around blocks' borders, and of those where a step's budget of 512 cuts them."""
    borders = [*range(62, 68), *range(78, 83), *range(126, 132), *range(190, 195), 256, 258, *range(510, 517), 700]
    warm = Watched(model, block_size=block_size)
    for index, length in enumerate(borders):
        # Its own first token: nothing is found of the others.
        prompt = [index + 1, *TEXT[1:length]]
        cold, nothing = warm.answer(prompt, cache_salt=f"cold-{length}")
        assert nothing == 0
        # Somebody else's prompt, which went on otherwise, has left its beginning.
        warm.answer([*prompt[:-2], 300, 301, 302], 1, cache_salt=f"warm-{length}")
        found, hit = warm.answer(prompt, cache_salt=f"warm-{length}")
        assert hit == expected_hit(length, block_size)
        assert torch.equal(cold, found), f"{length} tokens, of which {hit} were found"
    assert warm.engine.state().live_blocks == 0


def test_neighbours_change_no_bit(llama: Path) -> None:
    """Budget shares and decodes beside it cut a prompt otherwise, but always at borders."""
    alone, beside = Watched(llama), Watched(llama)
    cold, _ = alone.answer(TEXT[:600], 1)
    for index in range(5):
        beside.engine.add(AddRequest(f"neighbour-{index}", [index, *TEXT[index : 40 + 90 * index]], greedy(30)))
    for _ in range(3):
        beside.engine.step()
    seen: list[torch.Tensor] = []
    sample = beside.engine._sampler.sample

    def keep(logits: torch.Tensor, requests: Any) -> Any:
        seen.extend(row.clone() for row, one in zip(logits, requests, strict=True) if one.request_id == "own")
        return sample(logits, requests)

    beside.engine._sampler.sample = keep  # type: ignore[method-assign]
    beside.engine.add(AddRequest("own", TEXT[:600], greedy(1)))
    run(beside.engine)
    assert torch.equal(torch.stack(seen), cold)


@pytest.mark.parametrize("length", [258, 320])
@pytest.mark.parametrize("precision", ["INT8", "K8V4", "INT4"])
@pytest.mark.slow
def test_other_formats_read_what_was_stored(model: Path, precision: str, length: int) -> None:
    """A hit reads packed what a prompt in one chunk attends to as it came, and what one that is cut reads packed too.

    Where the last tokens are not kept in BF16 beside, a hit and a cut are the same in every bit. Where they are, a hit
    ends early enough for all of them to be there again when the answer begins: it is about as near to BF16 as a cut,
    also where a window of 40 tokens sees little else. (Without them a hit of 256 of 258 tokens was 5 times as far.)
    """
    exact = Watched(model)
    packed = Watched(model, precision=precision, num_blocks=400)
    prompt = TEXT[:length]
    reference, _ = exact.answer(prompt, 1)
    whole = packed.engine._blocks.layout
    packed.engine._blocks.layout = replace(whole, step_tokens=256)
    cut, nothing = packed.answer(prompt, 1)
    packed.engine._blocks.layout = whole
    warm, hit = packed.answer(prompt, 1)
    left = 2 if precision == "INT8" else 64
    assert (nothing, hit) == (0, (length - left) // 64 * 64)
    if precision == "INT8" and hit == 256:
        assert torch.equal(warm, cut)
    lost = [torch.dist(answer.float(), reference.float()).item() for answer in (cut, warm)]
    assert 0 < lost[1] < 3 * lost[0]
    assert packed.engine.state().live_blocks == 0


def test_switched_off_nothing_is_found(llama: Path) -> None:
    watched = Watched(llama, prefix_caching=False)
    assert [watched.answer(TEXT[:200], 1)[1] for _ in range(2)] == [0, 0]
    state = watched.engine.state()
    assert (state.cached_blocks, state.prefix_cache_queries, state.prefix_cache_hits) == (0, 0, 0)


def test_what_is_found_is_counted(llama: Path) -> None:
    watched = Watched(llama)
    watched.answer(TEXT[:200], 4)
    watched.answer(TEXT[:200], 4)
    state = watched.engine.state()
    assert (state.prefix_cache_queries, state.prefix_cache_hits, state.prompt_tokens) == (400, 192, 400 - 192)
    assert state.live_blocks + state.cached_blocks + state.free_blocks == state.num_blocks
    # 200 prompt tokens and 3 generated ones were written: 12 full blocks, each kept once
    assert state.cached_blocks == 12


def drawn(seed: int, tokens: int = 12) -> SamplingParams:
    return SamplingParams(max_tokens=tokens, temperature=1.0, seed=seed, ignore_eos=True)


def tokens_of(outputs: list[TokenOutput], name: str) -> list[int]:
    return [token for output in outputs if output.request_id == name for token in output.token_ids]


@pytest.mark.parametrize(("precision", "length"), [("BF16", 70), ("BF16", 64), ("BF16", 3), ("INT4", 70), ("INT4", 20)])
@pytest.mark.slow
def test_choices_equal_single_requests_with_their_seeds(model: Path, precision: str, length: int) -> None:
    alone = load(model, dtype="bfloat16", precision=precision, num_blocks=400, max_context=256, prefix_caching=False)
    single = {}
    for seed in range(4):
        alone.add(AddRequest(str(seed), TEXT[:length], drawn(seed)))
        single[str(seed)] = tokens_of(run(alone), str(seed))
    assert len({tuple(tokens) for tokens in single.values()}) > 1
    together = load(model, dtype="bfloat16", precision=precision, num_blocks=400, max_context=256)
    for seed in range(4):
        together.add(AddRequest(str(seed), TEXT[:length], drawn(seed), same_prompt_as="0" if seed else None))
    outputs = run(together)
    assert {name: tokens_of(outputs, name) for name in single} == single
    state = together.state()
    assert (state.prompt_tokens, state.requests, state.live_blocks, state.live_tokens) == (length, 4, 0, 0)
    firsts = [output.cached_tokens for output in outputs[:4]]
    assert firsts == [0, length, length, length]


def test_a_choice_that_is_given_up_leaves_the_others(llama: Path) -> None:
    def answers(*given_up: str) -> dict[str, list[int]]:
        engine = load(llama, dtype="bfloat16")
        for seed in range(3):
            engine.add(AddRequest(str(seed), TEXT[:40], drawn(seed), same_prompt_as="0" if seed else None))
        outputs = engine.step() + engine.step()
        for name in given_up:
            engine.abort(name)
        outputs += run(engine)
        assert engine.state().live_blocks == 0
        return {name: tokens_of(outputs, name) for name in "012" if name not in given_up}

    whole = answers()
    for name in "012":
        assert answers(name) == {other: tokens for other, tokens in whole.items() if other != name}


def test_choices_that_were_preempted_go_on_alike(llama: Path) -> None:
    def answers(num_blocks: int) -> tuple[dict[str, list[int]], int]:
        engine = load(llama, dtype="bfloat16", num_blocks=num_blocks, max_context=160)
        for seed in range(4):
            engine.add(AddRequest(str(seed), TEXT[:70], drawn(seed, 60), same_prompt_as="0" if seed else None))
        outputs = run(engine)
        assert engine.state().live_blocks == 0
        return {name: tokens_of(outputs, name) for name in "0123"}, engine.state().preemptions

    roomy, none = answers(64)
    tight, some = answers(11)
    assert none == 0 < some
    assert roomy == tight


def test_a_deadline_ends_a_request_by_name_wherever_it_is(llama: Path) -> None:
    engine = load(llama, dtype="bfloat16", batch_limit=1)
    now = 100.0
    engine._clock = lambda: now
    engine.add(AddRequest("runs", TEXT[:40], greedy(50), timeout_s=5))
    engine.add(AddRequest("waits", TEXT[:40], greedy(50), timeout_s=5.5))
    engine.add(AddRequest("goes on", TEXT[:40], greedy(3)))
    for _ in range(3):
        engine.step()
    now += 5
    first = engine.step()[0]
    assert first == TokenOutput(
        "runs",
        [],
        FinishReason.ERROR,
        "the request's deadline passed: it had 5 s and got 3 of 50 tokens",
        ErrorKind.DEADLINE,
    )
    now += 1
    outputs = run(engine)
    assert [output.kind for output in outputs if output.error] == [ErrorKind.DEADLINE]
    assert [output.finish_reason for output in outputs if output.request_id == "goes on"][-1] == FinishReason.LENGTH
    assert engine.state().live_blocks == 0


BOUNDARIES: dict[str, Callable[[Engine], tuple[Any, str]]] = {
    "before scheduling": lambda engine: (engine._scheduler, "schedule"),
    "admission": lambda engine: (engine._blocks, "admit"),
    "reservation": lambda engine: (engine._blocks, "reserve"),
    "copies": lambda engine: (engine._blocks, "take_copies"),
    "the plan": lambda engine: (engine._attention, "plan"),
    "the model": lambda engine: (engine._model, "forward"),
    "sampling": lambda engine: (engine._sampler, "sample"),
    "advancing": lambda engine: (engine._blocks, "advance"),
    "forking": lambda engine: (engine._scheduler, "fork"),
    "output": lambda engine: (engine, "_output"),
}


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("call", [1, *(pytest.param(later, marks=pytest.mark.slow) for later in (2, 4, 9))])
def test_nothing_stays_allocated_wherever_a_step_fails(
    llama: Path, boundary: str, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = load(llama, dtype="bfloat16", num_blocks=40)
    names = [str(index) for index in range(7)]
    for index, name in enumerate(names):
        leader = "0" if index in (1, 2) else None
        prompt = TEXT[:70] if index < 3 else TEXT[index : 20 * index]
        engine.add(AddRequest(name, prompt, drawn(index, 6), same_prompt_as=leader))
    owner, method = BOUNDARIES[boundary](engine)
    original, calls = getattr(owner, method), 0

    def fails(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            raise RuntimeError("injected")
        return original(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(owner, method, fails)
        outputs = run(engine)
    ends = [output.request_id for output in outputs if output.finish_reason is not None]
    assert sorted(ends) == names, "each request is told its end, once"
    if calls >= call:
        assert any(output.error == "the step failed: injected" for output in outputs)
    state = engine.state()
    assert (state.live_blocks, state.live_tokens, state.running, state.waiting) == (0, 0, 0, 0)
    assert state.cached_blocks + state.free_blocks == state.num_blocks
    # And the engine goes on as if nothing had been.
    engine.add(AddRequest("after", TEXT[:70], greedy(4)))
    assert run(engine)[-1].finish_reason is FinishReason.LENGTH
