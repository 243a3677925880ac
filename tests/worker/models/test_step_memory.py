"""What the planner counts for a step, against what each family's model takes; others are with real weights, in the
engine's tests."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch

from kvtide_kernels.backends import attention_over
from kvtide_kernels.cpu.library import library
from kvtide_kernels.pool import KVPool
from kvtide_sizing.devices.device import DeviceKind
from kvtide_sizing.formats import Precision, layer_formats
from kvtide_sizing.memory.activations import step_bytes
from kvtide_sizing.memory.kv import kv_layout
from kvtide_sizing.memory.weights import WeightFormat
from kvtide_sizing.models.inspect import inspect_model
from kvtide_worker.engine.worst_step import WorstStep
from kvtide_worker.models import choice
from kvtide_worker.models.checkpoint import open_checkpoint
from kvtide_worker.models.model import load_model
from tests.worker.models.dense import CPU, load
from tests.worker.models.tiny import save_tiny

# As of Qwen 2.5 0.5B and Qwen 3 0.6B, but for layers and vocabulary.
SIZES = {
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_attention_heads": 14,
    "num_hidden_layers": 2,
    "vocab_size": 20_000,
    "max_position_embeddings": 4096,
}
QWEN3_SIZES = {
    **SIZES,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
}


@pytest.fixture(
    scope="module",
    params=[("mistral", {**SIZES, "sliding_window": 128}), ("qwen2", SIZES), ("qwen3", QWEN3_SIZES), ("phi3", SIZES)],
    ids=lambda family: family[0],
)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of random weights, which takes longer to make than to run."""
    family, sizes = request.param
    path = tmp_path_factory.mktemp(family)
    save_tiny(path, family, **sizes)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("computed_by", ["plain", None], ids=["torch", "best"])
@pytest.mark.parametrize("context", [600, 2048])
def test_a_full_step_takes_what_is_planned(
    folder: Path, monkeypatch: pytest.MonkeyPatch, context: int, computed_by: str | None
) -> None:
    """Never below what is measured, and at most a twentieth above."""
    monkeypatch.setattr(choice, "library", partial(library, computed_by))
    shape, model = inspect_model(folder), load(open_checkpoint(folder), torch.bfloat16)
    formats = layer_formats(shape, Precision.BF16)
    layout = kv_layout(shape, formats, 64, 512)
    kv_heads, head_dim = model.config.kv_heads, model.config.head_dim
    pool = KVPool.allocate(
        layout,
        formats,
        num_blocks=layout.required_blocks(1, context),
        kv_heads=kv_heads,
        head_dim=head_dim,
        device=CPU,
    )
    attention = attention_over(pool, query_heads=model.config.query_heads, scale=model.config.attention_scale, bases={})
    measured = WorstStep(model, attention, pool, max_context_tokens=context, batch=16).measure_bytes()
    predicted = step_bytes(
        shape,
        DeviceKind.CPU,
        layout,
        context_tokens=context,
        batch=16,
        layer_kernels=choice.library().instruction_set == choice.INSTRUCTION_SET,
    )
    assert measured <= predicted <= 1.05 * measured


@pytest.mark.parametrize(("computed_by", "most"), [("plain", 1.8), (None, 1.6)], ids=["torch", "best"])
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_full_step_with_weights_of_eight_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, computed_by: str | None, most: float
) -> None:
    """Where an embedding is looked up is the fullest moment, as the MLP is no wider; torch takes what a processor does
    that multiplies no bfloat16: a few rows of a matrix in BF16."""
    monkeypatch.setattr(choice, "library", partial(library, computed_by))
    narrow = {"hidden_size": 1024, "intermediate_size": 1024, "num_hidden_layers": 2, "vocab_size": 2048}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 64, "max_position_embeddings": 4096}
    save_tiny(tmp_path, family, **narrow, **heads, tie_word_embeddings=True)
    stored = WeightFormat.INT8
    shape = inspect_model(tmp_path)
    model = load_model(open_checkpoint(tmp_path), dtype=torch.bfloat16, device=CPU, weight_format=stored)
    formats = layer_formats(shape, Precision.BF16)
    layout = kv_layout(shape, formats, 64, 512)
    blocks = layout.required_blocks(1, 600)
    pool = KVPool.allocate(layout, formats, num_blocks=blocks, kv_heads=1, head_dim=64, device=CPU)
    attention = attention_over(pool, query_heads=4, scale=model.config.attention_scale, bases={})
    measured = WorstStep(model, attention, pool, max_context_tokens=600, batch=16).measure_bytes()
    predicted = step_bytes(
        shape,
        DeviceKind.CPU,
        layout,
        context_tokens=600,
        batch=16,
        weights=stored,
        layer_kernels=choice.library().instruction_set == choice.INSTRUCTION_SET,
        bf16_units=False,
    )
    assert measured <= predicted <= most * measured
