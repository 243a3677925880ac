"""Pooled KV heads behind their gate: what is alike is served in fewer bytes, what is not is refused with numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from devcluster.model import smollm2_gguf
from kvtide_sizing.devices.device import Device, DeviceKind
from kvtide_sizing.errors import UnsupportedPolicy
from kvtide_sizing.memory.pooling import pooling_bytes
from kvtide_sizing.memory.sharding import with_kv_heads
from kvtide_sizing.memory.weights import weights_bytes
from kvtide_sizing.models.inspect import inspect_model
from kvtide_sizing.plan import Plan, Policy, Workload, plan
from kvtide_worker.engine.calibration import calibration_tokens
from kvtide_worker.engine.config import EngineConfig
from kvtide_worker.engine.engine import Engine
from kvtide_worker.engine.load import load_engine
from kvtide_worker.engine.peak import AllocationPeak
from kvtide_worker.engine.pooled_heads import load_pooled
from kvtide_worker.models.checkpoint import Checkpoint, open_checkpoint
from kvtide_worker.models.model import Model, load_model
from kvtide_worker.models.pooled import PooledCheckpoint
from kvtide_worker.text.tokenizer import Tokenizer
from tests.worker.engine.harness import calibration, generate, load
from tests.worker.models.tiny import save_tiny_llama

CPU = torch.device("cpu")
PROMPTS = [[1, 50, 60, 70], list(range(100, 140))]


def pooled_plan(model: Path, kv_heads: int | str, *, precision: str = "BF16", max_loss: float = 1.0) -> Plan:
    policy = Policy(precision, 16, kv_heads, max_quality_loss_percent=max_loss, served_only=True)
    return plan(inspect_model(model), Device("some", DeviceKind.CPU, 1 << 30), Workload(max_context_tokens=256), policy)


def engine_of(model: Path, planned: Plan, **options: Any) -> Engine:
    return load_engine(EngineConfig(f"file://{model}", planned.to_json(), **options), lambda stage: None, calibration)[
        0
    ]


@pytest.fixture(scope="module")
def different(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """4 query heads over 4 KV heads, all of them drawn by themselves."""
    folder = tmp_path_factory.mktemp("different")
    save_tiny_llama(folder, num_key_value_heads=4, head_dim=64)
    return folder


@pytest.fixture(scope="module")
def alike(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, but the two heads of each pair are one."""
    folder = tmp_path_factory.mktemp("alike")
    model = save_tiny_llama(folder, num_key_value_heads=4, head_dim=64)
    with torch.no_grad():
        for layer in model.model.layers:
            for projection in (layer.self_attn.k_proj, layer.self_attn.v_proj):
                heads = projection.weight.view(2, 2, 64, 64)
                heads[:, 1] = heads[:, 0]
    model.save_pretrained(folder)
    return folder


def test_heads_that_are_alike_are_served_in_half_the_bytes(alike: Path) -> None:
    planned = pooled_plan(alike, 2)
    # 2 layers · 2 heads of keys and of values · 64 elements · 2 bytes, in place of 4 heads
    assert planned.kv.bytes_per_token == 2 * 2 * 2 * 64 * 2
    assert (planned.attention.kv_heads, planned.attention.native_kv_heads) == (2, 4)
    assert "the worker compares them with all before it serves" in " ".join(planned.warnings)
    answers = generate(engine_of(alike, planned, dtype="float32"), PROMPTS, 20)
    assert answers == generate(load(alike), PROMPTS, 20)


def test_pooled_heads_are_stored_in_few_bits_too(alike: Path) -> None:
    """The text is sent once, and two checks ask for it."""
    planned = pooled_plan(alike, 2, precision="INT8", max_loss=50)
    assert len(generate(engine_of(alike, planned), PROMPTS, 5)[1]) == 5


def test_heads_that_differ_are_refused_with_the_numbers(different: Path) -> None:
    with pytest.raises(
        UnsupportedPolicy,
        # 0.0015 nats of noise and ln(1.01)
        match=r"attention\.kvHeads 2: with 4 KV heads pooled into 2 .* [1-9]\.\d+ nats .*maxQualityLossPercent 1 "
        r"allows 0\.0115; perplexity .* goes from .* Write Native, or serve a model that was trained with 2 KV heads",
    ):
        engine_of(different, pooled_plan(different, 2))


def test_who_allows_any_loss_is_served(different: Path) -> None:
    planned = pooled_plan(different, 1, max_loss=1e9)
    assert len(generate(engine_of(different, planned), PROMPTS, 5)[0]) == 5


def test_loading_takes_no_more_than_is_planned(tmp_path: Path) -> None:
    """By the allocator's record: all heads' keys and values, and what is compared, beside the pooled weights."""
    sizes = {"hidden_size": 256, "intermediate_size": 256, "vocab_size": 20_000, "num_hidden_layers": 4}
    save_tiny_llama(tmp_path, num_attention_heads=8, num_key_value_heads=8, head_dim=128, **sizes)
    native = open_checkpoint(tmp_path)

    def load_it(checkpoint: Checkpoint) -> Model:
        return load_model(checkpoint, dtype=torch.bfloat16, device=CPU)

    with AllocationPeak(CPU) as peak:
        load_pooled(PooledCheckpoint(native, 1), native, load_it, calibration(), max_loss_percent=1e15, device=CPU)
    shape = with_kv_heads(inspect_model(tmp_path), 1)
    # 16 MiB: the chunks that loading has passed through, as ever.
    assert peak.peak_bytes <= weights_bytes(shape, packed=True) + pooling_bytes(shape) + (16 << 20)
    assert pooling_bytes(inspect_model(tmp_path)) == 0


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["BF16", "INT8"])
def test_a_trained_model_is_refused(weights: str) -> None:
    """SmolLM2's three KV heads have nothing in common: their mean answers nothing."""
    path = smollm2_gguf()
    policy = Policy("BF16", kv_heads=1, weights=weights, served_only=True)
    device, workload = Device("some", DeviceKind.CPU, 2 << 30), Workload(max_context_tokens=512)
    planned = plan(inspect_model(path), device, workload, policy)
    text = calibration_tokens(Tokenizer.load(path))
    with pytest.raises(UnsupportedPolicy, match=r"attention\.kvHeads 1: with 3 KV heads pooled into 1 ") as refused:
        load_engine(EngineConfig(f"file://{path}", planned.to_json()), lambda stage: None, lambda: text)
    nats = float(str(refused.value).split("predictions are ")[1].split()[0])
    assert nats > 1
