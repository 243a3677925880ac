"""A model's dimensions from a Hugging Face folder's config.json.

What a family's file leaves out is as in its configuration class in transformers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvtide_sizing.errors import UnsupportedModel
from kvtide_worker.models.config import Family, ModelConfig
from kvtide_worker.models.hf_rope import RopeReader

_GEMMA3_PATTERN = 6  # every sixth layer sees all tokens, where a config does not say it
_SLIDING, _FULL = "sliding_attention", "full_attention"


def read_config(folder: Path) -> ModelConfig:
    """The dimensions. Raises UnsupportedModel for a type or an option that the worker does not run."""
    config = _read_json(folder / "config.json")
    # Some files name only the class.
    kind = config.get("model_type") or ", ".join(config.get("architectures") or [])
    family = _FAMILIES.get(kind) or _FAMILIES.get(_MODEL_TYPES.get(kind, ""))
    if family is None:
        known = ", ".join(f"'{name}'" for name in _FAMILIES)
        raise UnsupportedModel(f"{folder} holds a model of type '{kind}'; this worker runs {known}")
    return family(folder, config)


def _llama(folder: Path, config: dict[str, Any]) -> ModelConfig:
    _refuse(folder, config, "sliding_window")
    return _gated(folder, config, "llama")


def _mistral(folder: Path, config: dict[str, Any]) -> ModelConfig:
    config = {"num_key_value_heads": 8, "sliding_window": 4096, **config}
    return _gated(folder, config, "llama", window=config["sliding_window"])


def _qwen2(folder: Path, config: dict[str, Any]) -> ModelConfig:
    return _qwen(folder, config, "qwen2")


def _qwen3(folder: Path, config: dict[str, Any]) -> ModelConfig:
    return _qwen(folder, {"head_dim": 128, **config}, "qwen3")


def _qwen(folder: Path, config: dict[str, Any], family: Family) -> ModelConfig:
    config = {"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28, **config}
    # The files name a window that counts only where it is switched on, and from some layer on.
    window = config["sliding_window"] if config.get("use_sliding_window") else None
    return _gated(folder, config, family, window=window, first_windowed=config["max_window_layers"])


def _phi3(folder: Path, config: dict[str, Any]) -> ModelConfig:
    return _gated(
        folder,
        {"rms_norm_eps": 1e-5, **config},
        "phi3",
        window=config.get("sliding_window"),
        scalings=("default", "longrope", "su"),
        rotates_part=True,
    )


def _gated(
    folder: Path,
    config: dict[str, Any],
    family: Family,
    *,
    window: int | None = None,
    first_windowed: int = 0,
    scalings: tuple[str, ...] = ("default", "linear", "llama3"),
    rotates_part: bool = False,
) -> ModelConfig:
    """What is built like Llama. A window, where there is one, is for the layers from first_windowed on."""
    _refuse(folder, config, "mlp_bias", "quantization_config")
    if family != "qwen2":  # whose queries, keys and values always have biases
        _refuse(folder, config, "attention_bias")
    if config.get("hidden_act", "silu") != "silu":
        raise UnsupportedModel(f"{folder} sets hidden_act={config['hidden_act']}; this worker runs 'silu'")
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    sliding = [window is not None and layer >= first_windowed for layer in range(config["num_hidden_layers"])]
    return ModelConfig(
        **_common(folder, config),
        family=family,
        head_dim=head_dim,
        attention_scale=head_dim**-0.5,
        # A window as long as the context is none.
        windows=tuple(
            None if size is None or size >= config["max_position_embeddings"] else size
            for size in _windows(folder, config, window, sliding)
        ),
        rope=RopeReader(folder, config, head_dim, scalings, rotates_part).only(),
        window_rope=None,
        tied_embeddings=config.get("tie_word_embeddings", False),
    )


def _gemma3(folder: Path, config: dict[str, Any]) -> ModelConfig:
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
    ropes = config.get("rope_parameters") or {_FULL: config.get("rope_scaling")}
    full = {"rope_theta": config.get("rope_theta", 1_000_000.0), **(ropes.get(_FULL) or {})}
    local = {"rope_theta": config.get("rope_local_base_freq", 10_000.0), **(ropes.get(_SLIDING) or {})}
    pattern = config.get("sliding_window_pattern") or config.get("_sliding_window_pattern") or _GEMMA3_PATTERN
    sliding = [(layer + 1) % pattern != 0 for layer in range(config["num_hidden_layers"])]
    windows = _windows(folder, config, config.get("sliding_window", 4096), sliding)
    head_dim = config.get("head_dim", 256)
    reader = RopeReader(folder, config, head_dim, scalings=("default", "linear"))
    return ModelConfig(
        **_common(folder, config),
        family="gemma3",
        head_dim=head_dim,
        attention_scale=config.get("query_pre_attn_scalar", 256) ** -0.5,
        windows=windows,
        rope=reader.read(full),
        window_rope=reader.read(local) if any(windows) else None,
        tied_embeddings=config.get("tie_word_embeddings", True),
    )


_MODEL_TYPES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Gemma3ForCausalLM": "gemma3_text",
    "Phi3ForCausalLM": "phi3",
}
_FAMILIES: dict[str, Callable[[Path, dict[str, Any]], ModelConfig]] = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma3_text": _gemma3,
    "phi3": _phi3,
}


def _windows(folder: Path, config: dict[str, Any], window: int | None, sliding: list[bool]) -> tuple[int | None, ...]:
    """Each layer's window; sliding says which layers have it where layer_types does not."""
    of_layers = {_SLIDING: window, _FULL: None}
    types = config.get("layer_types") or [_SLIDING if slides else _FULL for slides in sliding]
    if len(types) != len(sliding):
        raise UnsupportedModel(f"{folder} has {len(sliding)} layers but {len(types)} layer_types; they must be as many")
    unknown = sorted(set(types) - set(of_layers))
    if unknown:
        raise UnsupportedModel(f"{folder} has layers of type '{unknown[0]}'; this worker runs {', '.join(of_layers)}")
    if _SLIDING in types and not window:
        raise UnsupportedModel(f"{folder} has layers of type '{_SLIDING}' but no sliding_window")
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
        "rms_norm_eps": config.get("rms_norm_eps", 1e-6),
        "eos_token_ids": _eos_token_ids(folder, config),
    }


def _refuse(folder: Path, config: dict[str, Any], *options: str) -> None:
    for option in options:
        if config.get(option):
            raise UnsupportedModel(f"{folder} sets {option}={config[option]}, which this worker does not run")


def _eos_token_ids(folder: Path, config: dict[str, Any]) -> tuple[int, ...]:
    """generation_config.json is what chat models keep current; config.json is what base models have."""
    eos = _read_json(folder / "generation_config.json").get("eos_token_id", config.get("eos_token_id"))
    if eos is None:
        return ()
    return tuple(eos) if isinstance(eos, list) else (eos,)


def _read_json(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return content
