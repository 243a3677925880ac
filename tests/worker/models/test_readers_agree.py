"""A configuration is read twice: by the planner, which must not import torch, and by the worker. They must agree."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvtide_sizing.errors import UnsupportedModel
from kvtide_sizing.models import catalog
from kvtide_sizing.models.config_json import shape_of_config
from kvtide_sizing.models.served import SERVED_ARCHITECTURES
from kvtide_worker.models.hf_config import read_config

EACH_FAMILY = ["smollm2-135m", "mistral-7b-v0.1", "qwen2.5-0.5b", "qwen3-0.6b", "gemma-3-270m", "phi-3-mini"]
SERVED = [name for name in catalog.names() if catalog.builtin(name).unserved is None]
# What stands in config.json beside sizes.
HOW = {"eos_token_id": 1}

LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
CHANGES: list[dict[str, Any]] = [
    {},
    {"model_type": None},
    {"attention_bias": True},
    {"mlp_bias": True},
    {"sliding_window": 128},
    {"quantization_config": {"quant_method": "fp8"}},
    {"hidden_act": "gelu"},
    {"hidden_activation": "silu"},
    {"final_logit_softcapping": 30.0},
    {"attn_logit_softcapping": 50.0},
    {"use_bidirectional_attention": True},
    {"partial_rotary_factor": 0.5},
    {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}},
    {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    {"rope_scaling": {"rope_type": "llama3", **LLAMA3}},
    {"rope_scaling": {"type": "su", "short_factor": [1.0], "long_factor": [2.0]}},
    {"rope_scaling": {"rope_type": "default", "partial_rotary_factor": 0.5}},
    {"use_sliding_window": True, "sliding_window": 128, "max_window_layers": 2},
    {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
]


def written(folder: Path, name: str, change: dict[str, Any]) -> dict[str, Any]:
    config = {**catalog.config(name), **HOW, **change}
    (folder / "config.json").write_text(json.dumps(config))
    return config


def test_there_are_models_of_all_families() -> None:
    assert {catalog.builtin(name).architecture for name in SERVED} == set(SERVED_ARCHITECTURES)


@pytest.mark.parametrize("name", SERVED)
def test_the_same_sizes_are_read(tmp_path: Path, name: str) -> None:
    shape = shape_of_config(written(tmp_path, name, {}), name)
    config = read_config(tmp_path)
    assert [layer.window for layer in shape.layers] == list(config.windows)
    assert {(layer.kv_heads, layer.head_dim, layer.value_dim) for layer in shape.layers} == {
        (config.kv_heads, config.head_dim, config.head_dim)
    }
    assert (shape.query_heads, shape.hidden_size, shape.intermediate_size, shape.vocab_size) == (
        config.query_heads,
        config.hidden_size,
        config.intermediate_size,
        config.vocab_size,
    )
    assert shape.max_context_tokens == config.max_position_embeddings
    assert shape.tied_embeddings == config.tied_embeddings


@pytest.mark.parametrize("change", CHANGES, ids=str)
@pytest.mark.parametrize("name", EACH_FAMILY)
def test_the_same_configurations_are_served(tmp_path: Path, name: str, change: dict[str, Any]) -> None:
    config = written(tmp_path, name, change)
    try:
        served = shape_of_config(config, name).unserved is None
    except UnsupportedModel:
        served = False
    if served:
        assert [layer.window for layer in shape_of_config(config, name).layers] == list(read_config(tmp_path).windows)
    else:
        with pytest.raises(UnsupportedModel):
            read_config(tmp_path)
