"""Formats that fail on a model's own weights are not served, by what the model itself says."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from kvtide_sizing.errors import UnsupportedPrecision
from kvtide_worker.engine.config import EngineConfig
from kvtide_worker.engine.engine import Engine
from kvtide_worker.engine.load import load_engine
from kvtide_worker.engine.messages import LoadReport
from tests.worker.engine.harness import calibration, generate, load, plan_for
from tests.worker.models.tiny import save_tiny_llama

# One element of values, beside which all others are lost in few bits: it is a thousand times as large, and what
# follows takes it back out.
LARGE, TIMES = 7, 1000.0
PROMPTS = [[7, 8, 9], list(range(20, 90)), list(range(250, 150, -3))]


def save(folder: Path, *, spoilt: bool) -> Path:
    """A model whose logits are the same in exact arithmetic, spoilt or not."""
    model = save_tiny_llama(folder, head_dim=64, initializer_range=0.15)
    if spoilt:
        with torch.no_grad():
            for layer in model.model.layers:
                # Two KV heads; each one's element goes into two query heads' inputs of o_proj.
                layer.self_attn.v_proj.weight.view(2, 64, -1)[:, LARGE] *= TIMES
                layer.self_attn.o_proj.weight.view(-1, 4, 64)[..., LARGE] /= TIMES
        model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("good"), spoilt=False)


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("spoilt"), spoilt=True)


def loaded(model: Path, precision: str, *, num_blocks: int = 120, **changes: Any) -> tuple[Engine, LoadReport]:
    planned = plan_for(
        model,
        num_blocks=num_blocks,
        block_size=16,
        max_context=256,
        batch_limit=16,
        precision=precision,
        max_loss=changes.pop("max_loss", 3.0),
    )
    planned["batchLimit"] = changes.pop("batch_limit", 16)
    if changes.pop("silent", False):
        planned["alternatives"] = []
    return load_engine(EngineConfig(f"file://{model}", planned), lambda stage: None, calibration)


def test_a_model_that_four_bits_spoil_answers_as_in_bf16(spoilt: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        engine, report = loaded(spoilt, "INT4", silent=True)
    checks = {check.precision: check for check in report.quality}
    state = engine.state()
    assert not checks["INT4"].passed
    assert checks["INT4"].kld is None or checks["INT4"].kld > checks["INT4"].limit
    assert report.fallback is not None
    assert report.fallback in caplog.text
    assert f"stored as {state.kv.precision} and not as INT4, as planned" in report.fallback
    assert state.kv.precision == "BF16"
    assert "INT4" not in state.kv.reencodable
    # INT4 of 64 takes 36 bytes where BF16 takes 128: 120 blocks become 33, and 16 sequences 4.
    assert (state.num_blocks, state.max_batch_limit) == (120 * 36 // 128, 16 * 33 // 120)
    assert engine._pool.nbytes <= 120 * 16 * 2 * 2 * 2 * 36
    exact = generate(load(spoilt, dtype="auto", num_blocks=200), PROMPTS, 20)
    assert generate(engine, PROMPTS, 20) == exact
    assert generate(load(spoilt, dtype="auto", precision="INT4"), PROMPTS, 20) != exact, "it is spoilt"


def test_the_same_weights_unspoilt_are_served_as_planned(good: Path) -> None:
    engine, report = loaded(good, "INT8", max_loss=30.0)
    assert report.fallback is None
    state = engine.state()
    assert (state.kv.precision, state.num_blocks, state.max_batch_limit) == ("INT8", 120, 16)
    assert state.kv.layers == [("0-1", "INT8", "INT8")]
    assert {check.precision: check.passed for check in report.quality}["INT8"]


def test_where_nothing_better_fits_nothing_is_served(spoilt: Path) -> None:
    """33 blocks of INT4 hold 256 tokens in 16 and the last ones in 8 more; their bytes are 9 blocks of BF16."""
    with pytest.raises(
        UnsupportedPrecision,
        match=r"the plan stores KV as INT4, which loses too much .* hold no sequence of 256 tokens in a better",
    ):
        loaded(spoilt, "INT4", num_blocks=33)


def test_bf16_is_not_checked_but_what_it_may_become_is(good: Path) -> None:
    engine, report = loaded(good, "BF16", max_loss=1e9)
    assert [check.precision for check in report.quality] == ["INT8", "K8V4", "INT4"]
    assert engine.state().kv.reencodable == ["INT8", "K8V4", "INT4"]
    int8, _, int4 = [check.kld or 0.0 for check in report.quality]
    assert 0 < int8 < int4
