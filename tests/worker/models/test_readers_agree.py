"""A configuration is read twice: by the planner, which must not import torch, and by the worker. They must agree."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvtide_sizing.errors import UnsupportedModel
from kvtide_sizing.models import catalog
from kvtide_sizing.models.config_json import shape_of_config
from kvtide_worker.models.hf_config import read_config

SERVED = [name for name in catalog.names() if catalog.builtin(name).unserved is None]
# What the worker needs beside sizes, as transformers' own defaults have it.
HOW = {"rms_norm_eps": 1e-6, "eos_token_id": 1}

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
    {"architectures": ["MistralForCausalLM"], "model_type": "mistral"},
]


def written(folder: Path, name: str, change: dict[str, Any]) -> dict[str, Any]:
    config = {**catalog.config(name), **HOW, **change}
    (folder / "config.json").write_text(json.dumps(config))
    return config


def test_there_are_models_of_both_families() -> None:
    assert {catalog.builtin(name).architecture for name in SERVED} == {"LlamaForCausalLM", "Gemma3ForCausalLM"}


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
@pytest.mark.parametrize("name", ["smollm2-135m", "gemma-3-270m"])
def test_the_same_configurations_are_served(tmp_path: Path, name: str, change: dict[str, Any]) -> None:
    config = written(tmp_path, name, change)
    try:
        served = shape_of_config(config, name).unserved is None
    except UnsupportedModel:
        served = False
    if served:
        read_config(tmp_path)
    else:
        with pytest.raises(UnsupportedModel):
            read_config(tmp_path)
