"""The step with a model whose layers have windows: 7 layers, of which one sees all tokens and six the last 24."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import Gemma3ForCausalLM

from kvtide_sizing.errors import InvalidPlan
from kvtide_worker.engine import layout
from kvtide_worker.engine.config import EngineConfig
from kvtide_worker.engine.load import load_engine
from kvtide_worker.engine.messages import AddRequest
from tests.worker.engine.harness import calibration, generate, greedy, load, plan_for, run
from tests.worker.models.tiny import save_tiny_gemma3

PROMPTS = [[7, 8, 9], list(range(20, 44)), list(range(100, 116)), list(range(300, 100, -1))]
NEW_TOKENS = 40


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny_gemma3(folder)
    return folder


@pytest.fixture(scope="module")
def expected(model: Path) -> list[list[int]]:
    """transformers' greedy tokens; each window is full long before the last of them."""
    reference = Gemma3ForCausalLM.from_pretrained(model, dtype=torch.float32)
    return [
        reference.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            do_sample=False,
            max_new_tokens=NEW_TOKENS,
            eos_token_id=None,
            pad_token_id=0,
        )[0, len(prompt) :].tolist()
        for prompt in PROMPTS
    ]


@pytest.mark.slow
def test_tokens_equal_transformers(model: Path, expected: list[list[int]]) -> None:
    engine = load(model)
    assert [generate(engine, [prompt], NEW_TOKENS)[0] for prompt in PROMPTS] == expected
    assert generate(engine, PROMPTS, NEW_TOKENS) == expected
    state = engine.state()
    assert (state.live_blocks, state.live_tokens, state.preemptions) == (0, 0, 0)


@pytest.mark.slow
def test_being_put_back_changes_no_token(model: Path, expected: list[list[int]]) -> None:
    """A lower limit puts the newest back, whose windows are computed again; the pool lets few in at once.

    The plan's 36 blocks are 252 of one layer. A sequence of 256 tokens takes 16 + 6 · 3 of them, a step's new tokens
    6 · ceil(511 / 16).
    """
    engine = load(model, num_blocks=36)
    for index, prompt in enumerate(PROMPTS):
        engine.add(AddRequest(str(index), prompt, greedy(NEW_TOKENS)))
    outputs = []
    for limit in (4, 1, 2, 1, 3, 4):
        engine.set_batch_limit(limit)
        for _ in range(5):
            outputs += engine.step()
    outputs += run(engine)
    for index, tokens in enumerate(expected):
        assert [token for output in outputs if output.request_id == str(index) for token in output.token_ids] == tokens
    assert engine.state().live_blocks == 0


def test_state_counts_what_windows_left(model: Path) -> None:
    engine = load(model)
    engine.add(AddRequest("a", list(range(200)), greedy(8)))
    engine.step()
    state = engine.state()
    assert state.num_blocks == 64 * 7
    # 200 tokens in one table; in each of six the next token sees 177 to 199, which begin in block 11 at 176.
    assert state.live_blocks == 13 + 6 * 2
    assert state.live_tokens == -(-(200 + 6 * 24) // 7)
    run(engine)
    assert engine.state().live_blocks == 0


def test_refuses_a_plan_with_other_blocks(model: Path) -> None:
    """7 tables; a block is 16 tokens of one layer: 2 sides of one head of 32 elements of 2 bytes."""
    planned = plan_for(model, num_blocks=64, block_size=16, max_context=256, batch_limit=4)
    assert planned["kv"]["bytesPerBlock"] == 7 * 16 * 2 * 32 * 2
    planned["kv"] |= {"blockTables": 1, "bytesPerBlock": 16 * 2 * 32 * 2}
    with pytest.raises(InvalidPlan, match="1 block tables and blocks of 2048 bytes, but the model takes 7 and 14336"):
        load_engine(EngineConfig(f"file://{model}", planned), lambda stage: None, calibration)


def test_refuses_a_model_that_runs_with_other_windows(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two readers of the same files: where they disagreed, tokens would be given back too early."""
    save_tiny_gemma3(tmp_path, sliding_window=32)
    inspect = layout.inspect_model
    monkeypatch.setattr(layout, "inspect_model", lambda path: inspect(tmp_path))
    with pytest.raises(InvalidPlan, match="planned with a window of 32 tokens, but the model runs with 24"):
        load(model)
