"""A model's dimensions from a Hugging Face folder's config.json."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvtide_sizing.errors import UnsupportedModel
from kvtide_worker.models.config import ModelConfig
from kvtide_worker.models.rope import LinearScaling, Llama3Scaling, NoScaling, Rope, RopeScaling

_GEMMA3_PATTERN = 6  # every sixth layer sees all tokens, where a config does not say it


def read_config(folder: Path) -> ModelConfig:
    """The dimensions. Raises UnsupportedModel for a type or an option that the worker does not run."""
    config = _read_json(folder / "config.json")
    # Some files name only the class.
    kind = config.get("model_type") or ", ".join(config.get("architectures") or [])
    family = _FAMILIES.get(kind) or _FAMILIES.get(_MODEL_TYPES.get(kind, ""))
    if family is None:
        known = " and ".join(f"'{name}'" for name in _FAMILIES)
        raise UnsupportedModel(f"{folder} holds a model of type '{kind}'; this worker runs {known}")
    if config.get("partial_rotary_factor", 1) != 1:
        raise UnsupportedModel(f"{folder} rotates a part of each head; this worker rotates all of it")
    return family(folder, config)


def _llama(folder: Path, config: dict[str, Any]) -> ModelConfig:
    _refuse(folder, config, "attention_bias", "mlp_bias", "quantization_config", "sliding_window")
    if config.get("hidden_act", "silu") != "silu":
        raise UnsupportedModel(f"{folder} sets hidden_act={config['hidden_act']}; this worker runs 'silu'")
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    # Newer folders say all about RoPE in rope_parameters, older ones in rope_theta and rope_scaling.
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return ModelConfig(
        **_common(folder, config),
        family="llama",
        head_dim=head_dim,
        attention_scale=head_dim**-0.5,
        windows=(None,) * config["num_hidden_layers"],
        rope=_rope(folder, {"rope_theta": config.get("rope_theta", 10_000.0), **rope}),
        window_rope=None,
        tied_embeddings=config.get("tie_word_embeddings", False),
    )


def _gemma3(folder: Path, config: dict[str, Any]) -> ModelConfig:
    """As transformers' Gemma3TextConfig: what is left out there has its value here."""
    _refuse(
        folder,
        config,
        "attention_bias",
        "quantization_config",
        "attn_logit_softcapping",
        "final_logit_softcapping",
        "use_bidirectional_attention",
    )
    activation = config.get("hidden_activation", "gelu_pytorch_tanh")
    if activation != "gelu_pytorch_tanh":
        raise UnsupportedModel(f"{folder} sets hidden_activation={activation}; this worker runs 'gelu_pytorch_tanh'")
    # Newer folders say all about RoPE in rope_parameters, older ones in four places.
    ropes = config.get("rope_parameters") or {"full_attention": config.get("rope_scaling")}
    full = {"rope_theta": config.get("rope_theta", 1_000_000.0), **(ropes.get("full_attention") or {})}
    local = {"rope_theta": config.get("rope_local_base_freq", 10_000.0), **(ropes.get("sliding_attention") or {})}
    windows = _gemma3_windows(folder, config)
    return ModelConfig(
        **_common(folder, config),
        family="gemma3",
        head_dim=config.get("head_dim", 256),
        attention_scale=config.get("query_pre_attn_scalar", 256) ** -0.5,
        windows=windows,
        rope=_rope(folder, full),
        window_rope=_rope(folder, local) if any(windows) else None,
        tied_embeddings=config.get("tie_word_embeddings", True),
    )


_MODEL_TYPES = {"LlamaForCausalLM": "llama", "Gemma3ForCausalLM": "gemma3_text"}
_FAMILIES: dict[str, Callable[[Path, dict[str, Any]], ModelConfig]] = {"llama": _llama, "gemma3_text": _gemma3}


def _gemma3_windows(folder: Path, config: dict[str, Any]) -> tuple[int | None, ...]:
    num_layers = config["num_hidden_layers"]
    pattern = config.get("sliding_window_pattern") or config.get("_sliding_window_pattern") or _GEMMA3_PATTERN
    of_layers = {"sliding_attention": config.get("sliding_window", 4096), "full_attention": None}
    types = config.get("layer_types") or [
        "sliding_attention" if (layer + 1) % pattern else "full_attention" for layer in range(num_layers)
    ]
    if len(types) != num_layers:
        raise UnsupportedModel(f"{folder} has {num_layers} layers but {len(types)} layer_types; they must be as many")
    unknown = sorted(set(types) - set(of_layers))
    if unknown:
        raise UnsupportedModel(f"{folder} has layers of type '{unknown[0]}'; this worker runs {', '.join(of_layers)}")
    if "sliding_attention" in types and not of_layers["sliding_attention"]:
        raise UnsupportedModel(f"{folder} has layers of type 'sliding_attention' but no sliding_window")
    return tuple(of_layers[kind] for kind in types)


def _common(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """What all families say under the same keys."""
    query_heads = config["num_attention_heads"]
    return {
        "num_layers": config["num_hidden_layers"],
        "hidden_size": config["hidden_size"],
        "intermediate_size": config["intermediate_size"],
        "query_heads": query_heads,
        "kv_heads": config.get("num_key_value_heads") or query_heads,
        "vocab_size": config["vocab_size"],
        "max_position_embeddings": config["max_position_embeddings"],
        "rms_norm_eps": config["rms_norm_eps"],
        "eos_token_ids": _eos_token_ids(folder, config),
    }


def _refuse(folder: Path, config: dict[str, Any], *options: str) -> None:
    for option in options:
        if config.get(option):
            raise UnsupportedModel(f"{folder} sets {option}={config[option]}, which this worker does not run")


def _rope(folder: Path, rope: dict[str, Any]) -> Rope:
    return Rope(rope["rope_theta"], _rope_scaling(folder, rope))


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


def _read_json(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return content
