"""Weights and configuration from a Hugging Face folder: config.json and *.safetensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from kvtide_sizing.errors import UnsupportedModel
from kvtide_worker.models.config import ModelConfig
from kvtide_worker.models.rope import LinearScaling, Llama3Scaling, NoScaling, Rope, RopeScaling


class SafetensorsCheckpoint:
    """A Llama model in a Hugging Face folder. Raises UnsupportedModel for other types and options."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.config = _config(folder)
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise UnsupportedModel(f"{folder} has no *.safetensors; other weight files are not read")
        self._files: dict[str, Any] = {}
        for file in files:
            opened: Any = safe_open(file, framework="pt")
            self._files.update(dict.fromkeys(opened.keys(), opened))

    def tensor(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """As `Checkpoint.tensor`."""
        if name not in self._files:
            raise KeyError(f"{self._folder} has no tensor {name}, which Llama models need")
        stored: torch.Tensor = self._files[name].get_tensor(name)
        return stored.to(dtype, copy=True)


def _read_json(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return content


def _config(folder: Path) -> ModelConfig:
    config = _read_json(folder / "config.json")
    if config.get("model_type") != "llama":
        raise UnsupportedModel(f"{folder} holds a model of type '{config.get('model_type')}'; this worker runs 'llama'")
    for option in ("attention_bias", "mlp_bias", "quantization_config", "sliding_window"):
        if config.get(option):
            raise UnsupportedModel(f"{folder} sets {option}={config[option]}, which this worker does not run")
    if config.get("partial_rotary_factor", 1) != 1:
        raise UnsupportedModel(f"{folder} rotates a part of each head; this worker rotates all of it")
    if config.get("hidden_act", "silu") != "silu":
        raise UnsupportedModel(f"{folder} sets hidden_act={config['hidden_act']}; this worker runs 'silu'")
    query_heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // query_heads
    # Newer folders say all about RoPE in rope_parameters, older ones in rope_theta and rope_scaling.
    rope = config.get("rope_parameters") or {**(config.get("rope_scaling") or {})}
    return ModelConfig(
        family="llama",
        num_layers=config["num_hidden_layers"],
        hidden_size=config["hidden_size"],
        intermediate_size=config["intermediate_size"],
        query_heads=query_heads,
        kv_heads=config.get("num_key_value_heads") or query_heads,
        head_dim=head_dim,
        vocab_size=config["vocab_size"],
        max_position_embeddings=config["max_position_embeddings"],
        rms_norm_eps=config["rms_norm_eps"],
        attention_scale=head_dim**-0.5,
        windows=(None,) * config["num_hidden_layers"],
        rope=Rope(rope.get("rope_theta") or config.get("rope_theta", 10_000.0), _rope_scaling(folder, rope)),
        window_rope=None,
        tied_embeddings=config.get("tie_word_embeddings", False),
        eos_token_ids=_eos_token_ids(folder, config),
    )


def _rope_scaling(folder: Path, rope: dict[str, Any]) -> RopeScaling:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return NoScaling()
    if kind == "linear":
        return LinearScaling(rope["factor"])
    if kind == "llama3":
        return Llama3Scaling(
            factor=rope["factor"],
            low_freq_factor=rope["low_freq_factor"],
            high_freq_factor=rope["high_freq_factor"],
            original_max_position_embeddings=rope["original_max_position_embeddings"],
        )
    raise UnsupportedModel(f"{folder} scales RoPE by '{kind}'; this worker knows default, linear and llama3")


def _eos_token_ids(folder: Path, config: dict[str, Any]) -> tuple[int, ...]:
    """generation_config.json is what chat models keep current; config.json is what base models have."""
    eos = _read_json(folder / "generation_config.json").get("eos_token_id", config.get("eos_token_id"))
    if eos is None:
        return ()
    return tuple(eos) if isinstance(eos, list) else (eos,)
