"""A model's shape from Hugging Face's config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvtide_sizing.errors import InvalidModel, UnsupportedModel
from kvtide_sizing.models.llama import llama_shape
from kvtide_sizing.models.safetensors_header import read_folder
from kvtide_sizing.shape import ModelShape

CONFIG_FILE = "config.json"
_SERVED = "LlamaForCausalLM"
SERVED_ROPE_SCALINGS = ("default", "linear", "llama3")


def shape_of_folder(folder: Path, name: str) -> ModelShape:
    """The shape of a folder with config.json, checked against its safetensors headers where it has them.

    Raises InvalidModel and UnsupportedModel as `shape_of_config`, and InvalidModel for weights that the
    configuration needs and the files lack.
    """
    config = json_object((folder / CONFIG_FILE).read_bytes(), str(folder / CONFIG_FILE))
    stored = read_folder(folder)
    shape = shape_of_config(config, name, weights_dtype=stored.dtype if stored else None)
    # Files may hold more: a head though it is tied, or buffers that are computed today.
    if stored is not None and stored.elements < shape.parameters:
        raise InvalidModel(
            f"{name} contradicts itself: {CONFIG_FILE} describes {shape.parameters} parameters, "
            f"its safetensors files hold {stored.elements}"
        )
    return shape


def json_object(data: bytes, source: str) -> dict[str, Any]:
    """The JSON object in data. Raises InvalidModel, which names the source, for anything else."""
    try:
        value = json.loads(data)
    except ValueError as error:
        raise InvalidModel(f"{source} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidModel(f"{source} holds no JSON object")
    return value


def shape_of_config(config: dict[str, Any], name: str, weights_dtype: str | None = None) -> ModelShape:
    """The shape that a configuration describes.

    Raises UnsupportedModel for an architecture or a variant that is not served, InvalidModel for fields that are
    missing, of another type, or contradict each other.
    """
    _check_served(config, name)
    query_heads = _integer(config, "num_attention_heads", name)
    optional = {"head_dim", "num_key_value_heads"} & {key for key, value in config.items() if value is not None}
    return llama_shape(
        name,
        num_layers=_integer(config, "num_hidden_layers", name),
        hidden_size=_integer(config, "hidden_size", name),
        intermediate_size=_integer(config, "intermediate_size", name),
        query_heads=query_heads,
        kv_heads=(_integer(config, "num_key_value_heads", name) if "num_key_value_heads" in optional else query_heads),
        vocab_size=_integer(config, "vocab_size", name),
        max_context_tokens=_integer(config, "max_position_embeddings", name),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        head_dim=_integer(config, "head_dim", name) if "head_dim" in optional else None,
        weights_dtype=weights_dtype,
    )


def _check_served(config: dict[str, Any], name: str) -> None:
    architectures = config.get("architectures") or [f"of model_type {config.get('model_type')}"]
    if architectures != [_SERVED]:
        raise UnsupportedModel(f"{name} is {', '.join(map(str, architectures))}, which is not served; {_SERVED} is")
    for field in ("attention_bias", "mlp_bias", "quantization_config", "sliding_window"):
        if config.get(field):
            raise UnsupportedModel(f"{name} has {field} {config[field]}, which is not served; {_SERVED} without it is")
    if config.get("partial_rotary_factor", 1) != 1:
        raise UnsupportedModel(f"{name} rotates a part of each head, which is not served; all of it is")
    if config.get("hidden_act", "silu") != "silu":
        raise UnsupportedModel(f"{name} has hidden_act {config['hidden_act']}, which is not served; silu is")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    scaling = rope.get("rope_type") or rope.get("type") or "default"
    if scaling not in SERVED_ROPE_SCALINGS:
        served = ", ".join(SERVED_ROPE_SCALINGS)
        raise UnsupportedModel(f"{name} scales RoPE by {scaling}, which is not served; {served} are")


def _integer(config: dict[str, Any], key: str, name: str) -> int:
    value = config.get(key)
    if type(value) is not int:
        raise InvalidModel(f"{CONFIG_FILE} of {name} has no number of {key}: {value!r}")
    return value
