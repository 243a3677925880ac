"""The GPU's ladder on a small model and a CPU, so that no GPU's time goes to mistakes in it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bench import gpu_engine as bench
from kvtide_sizing.formats import Precision
from kvtide_sizing.models import catalog

CPU = torch.device("cpu")
SMALL: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2,
    "hidden_size": 512,
    "intermediate_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 500,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}
# A gibibyte of it is what CUDA may take, one part in 25 the reserve.
HELD_BYTES = (1100 << 20) * 25 // 24


@pytest.mark.parametrize("rung", bench.rungs(8, Precision.INT8, Precision.INT4), ids=lambda rung: rung.name)
@pytest.mark.slow
def test_every_rung_is_built_and_measured(rung: bench.Rung) -> None:
    held = bench.Held.of(rung, SMALL, HELD_BYTES)
    measured = bench.measure(held, CPU, seconds=3.0)
    summary = measured.summary()
    assert summary["prefill_tokens_per_s"] > 0
    assert summary["tokens_per_s"] > 0
    assert summary["pool_bytes"] == held.num_blocks * held.budget.block_bytes


def test_weights_are_those_that_the_planner_counts() -> None:
    """40 · (4 · 5120² + 3 · 5120 · 13,824 + 2 · 5120) + 2 · 32,000 · 5120 + 5120: all of Llama 2 13B."""
    config = catalog.config(bench.MODEL)
    shapes = bench.RandomCheckpoint(config)
    layer = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"]
    layer += ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "input_layernorm", "post_attention_layernorm"]
    names = [f"model.layers.0.{name}.weight" for name in layer] * 40
    names += ["model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"]
    counted = sum(torch.Size(shapes.shape(name)).numel() for name in names)
    assert counted == 13_015_864_320
    taken = bench.Held.of(bench.rungs(40)[0], config, bench.HELD_BYTES).budget
    assert taken.weights_bytes == 2 * counted


def test_40_gb_hold_three_reserved_sequences() -> None:
    """26.03 GB of weights; a sequence of 4,096 tokens takes 2 · 40 layers · 5,120 · 4,096 · 2 bytes = 3.36 GB."""
    contiguous, *_ = bench.rungs(40)
    held = bench.Held.of(contiguous, catalog.config(bench.MODEL), bench.HELD_BYTES)
    assert held.batch_limit == 3


def test_what_holds_no_sequence_is_refused() -> None:
    contiguous, *_ = bench.rungs(40)
    with pytest.raises(SystemExit, match="contiguous: 28000000000 bytes hold no sequence of 4096 tokens"):
        bench.Held.of(contiguous, catalog.config(bench.MODEL), 28 * 10**9)


def test_without_a_gpu_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="no CUDA device"):
        bench.main([])


def row(**numbers: float) -> dict[str, float]:
    made = {"sequences": 3.0, "sequence_bytes": 100.0, "tokens_per_s": 50.0, "ms_per_token": 1.0}
    return made | {"prefill_tokens_per_s": 9.0} | numbers


def test_goals_that_were_missed_are_told() -> None:
    rows = {
        "contiguous": row(),
        "good": row(sequences=12.0, sequence_bytes=27.0, tokens_per_s=160.0),
        "bad": row(sequences=11.0, sequence_bytes=30.0, tokens_per_s=100.0),
    }
    assert bench.missed(rows, "good") == []
    assert bench.missed(rows, "bad") == [
        "bad: sequences 3.67, goal 4",
        "bad: saved 0.70, goal 0.73",
        "bad: tokens 2.00, goal 3.2",
    ]
    assert [line.split() for line in bench.told(rows)][3][:4] == ["bad", "11.0", "3.7x", "30"]
