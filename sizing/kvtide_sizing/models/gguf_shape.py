"""A model's shape from a GGUF file's header: its metadata, put into the fields of a config.json and read as one.

Keys are those of llama.cpp's converter (https://github.com/ggml-org/llama.cpp, gguf-py/gguf/constants.py).
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvtide_sizing.errors import InvalidModel, UnsupportedModel
from kvtide_sizing.models.attention import FULL, SLIDING, head_dim_of
from kvtide_sizing.models.config import Config
from kvtide_sizing.models.gguf_header import GgufHeader, read_header
from kvtide_sizing.models.registry import read_shape
from kvtide_sizing.models.served import why_gguf_unserved, why_unserved
from kvtide_sizing.shape import ModelShape

# Factors of rotation, one for each frequency: they say how, and are no weights.
_NO_WEIGHTS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")

_REQUIRED = {
    "num_hidden_layers": "block_count",
    "hidden_size": "embedding_length",
    "num_attention_heads": "attention.head_count",
    "max_position_embeddings": "context_length",
}
_OPTIONAL = {
    "intermediate_size": "feed_forward_length",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
_EXPERTS = {
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
}
_WINDOW = {"sliding_window": "attention.sliding_window"}


class _Metadata:
    """What a header says under its architecture's prefix."""

    def __init__(self, header: GgufHeader, name: str) -> None:
        self.name = name
        self.header = header
        self.architecture = str(header.metadata.get("general.architecture"))

    def get(self, key: str) -> Any:
        """A value; of an array of equal ones, that one, else a list. None where there is none."""
        value = self.header.metadata.get(f"{self.architecture}.{key}")
        if not isinstance(value, tuple):
            return value
        return value[0] if len(set(value)) == 1 else list(value)

    def has(self, tensor: str) -> bool:
        """Whether there is a tensor of that name."""
        return tensor in self.header.tensors

    def fields(self, keys: dict[str, str]) -> dict[str, Any]:
        """Those of the keys that are there, by the names that config.json has for them."""
        return {field: value for field, key in keys.items() if (value := self.get(key)) is not None}

    def required(self) -> dict[str, Any]:
        """As `fields`, of what every model has. Raises InvalidModel where one is missing."""
        for key in _REQUIRED.values():
            if self.get(key) is None:
                raise InvalidModel(f"{self.name} has no {self.architecture}.{key}")
        return self.fields(_REQUIRED)


def _plain(architecture: str, keys: dict[str, str] | None = None) -> Callable[[_Metadata], dict[str, Any]]:
    """A translation that adds these keys."""
    return lambda metadata: {"architectures": [architecture], **metadata.fields(keys or {})}


def _llama(metadata: _Metadata) -> dict[str, Any]:
    """Llama and Mistral, which GGUF does not tell apart, and Mixtral."""
    if not metadata.get("expert_count"):
        return {"architectures": ["LlamaForCausalLM"]}
    keys = {"num_local_experts": "expert_count", "num_experts_per_tok": "expert_used_count"}
    return {"architectures": ["MixtralForCausalLM"], **metadata.fields(keys)}


def _qwen2_moe(metadata: _Metadata) -> dict[str, Any]:
    keys = {**_EXPERTS, "shared_expert_intermediate_size": "expert_shared_feed_forward_length"}
    return {
        "architectures": ["Qwen2MoeForCausalLM"],
        "qkv_bias": metadata.has("blk.0.attn_q.bias"),
        **metadata.fields(keys),
    }


def _gemma3(metadata: _Metadata) -> dict[str, Any]:
    # As llama.cpp: without a window, or with one of 0, there is none; without a pattern, every sixth layer is full.
    fields = {
        "architectures": ["Gemma3ForCausalLM"],
        "sliding_window": metadata.get("attention.sliding_window") or None,
    }
    pattern = metadata.get("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        return {**fields, "layer_types": [SLIDING if slides else FULL for slides in pattern]}
    return fields if pattern is None else {**fields, "sliding_window_pattern": pattern}


def _phi3(metadata: _Metadata) -> dict[str, Any]:
    return {"architectures": ["Phi3ForCausalLM"], "sliding_window": metadata.get("attention.sliding_window") or None}


def _gpt2(metadata: _Metadata) -> dict[str, Any]:
    keys = {
        "n_embd": "embedding_length",
        "n_layer": "block_count",
        "n_head": "attention.head_count",
        "n_positions": "context_length",
        "n_inner": "feed_forward_length",
    }
    return {"architectures": ["GPT2LMHeadModel"], **metadata.fields(keys)}


def _falcon(metadata: _Metadata) -> dict[str, Any]:
    own_norms = metadata.has("blk.0.attn_norm_2.weight")
    kv_heads = metadata.get("attention.head_count_kv")
    return {
        "architectures": ["FalconForCausalLM"],
        "new_decoder_architecture": own_norms or kv_heads != 1,
        "num_ln_in_parallel_attn": 2 if own_norms else 1,
        "num_kv_heads": kv_heads,
        "bias": metadata.has("blk.0.ffn_up.bias"),
        **metadata.fields({"ffn_hidden_size": "feed_forward_length"}),
    }


def _deepseek(metadata: _Metadata) -> dict[str, Any]:
    """DeepSeek V2, and V3 by its router's bias. Newer files keep the heads' sizes under other keys: key_length and
    value_length are the latent's there."""
    keys = {
        "kv_lora_rank": "attention.kv_lora_rank",
        "qk_rope_head_dim": "rope.dimension_count",
        "first_k_dense_replace": "leading_dense_block_count",
        "n_routed_experts": "expert_count",
        "n_shared_experts": "expert_shared_count",
        "num_experts_per_tok": "expert_used_count",
        "moe_intermediate_size": "expert_feed_forward_length",
    }
    fields = metadata.fields(keys)
    key = metadata.get("attention.key_length_mla") or metadata.get("attention.key_length")
    value = metadata.get("attention.value_length_mla") or metadata.get("attention.value_length")
    rotated = fields.get("qk_rope_head_dim")
    if type(key) is not int or type(rotated) is not int:
        raise InvalidModel(f"{metadata.name} has no head sizes: keys of {key!r}, of which {rotated!r} are rotated")
    has_bias = any(name.endswith("exp_probs_b.bias") for name in metadata.header.tensors)
    return {
        **fields,
        "architectures": ["DeepseekV3ForCausalLM" if has_bias else "DeepseekV2ForCausalLM"],
        "q_lora_rank": metadata.get("attention.q_lora_rank") or None,
        "qk_nope_head_dim": key - rotated,
        "v_head_dim": value,
    }


def _gpt_oss(metadata: _Metadata) -> dict[str, Any]:
    keys = {
        "intermediate_size": "expert_feed_forward_length",
        "num_local_experts": "expert_count",
        "num_experts_per_tok": "expert_used_count",
        **_WINDOW,
    }
    return {"architectures": ["GptOssForCausalLM"], **metadata.fields(keys)}


_TRANSLATIONS = {
    "llama": _llama,
    "qwen2": _plain("Qwen2ForCausalLM"),
    "qwen3": _plain("Qwen3ForCausalLM"),
    "qwen2moe": _qwen2_moe,
    "qwen3moe": _plain("Qwen3MoeForCausalLM", _EXPERTS),
    "gemma2": _plain("Gemma2ForCausalLM", _WINDOW),
    "gemma3": _gemma3,
    "phi2": _plain("PhiForCausalLM"),
    "phi3": _phi3,
    "gpt2": _gpt2,
    "gptneox": _plain("GPTNeoXForCausalLM"),
    "falcon": _falcon,
    "deepseek2": _deepseek,
    "gpt-oss": _gpt_oss,
}
_LATENT = "deepseek2"


def shape_of_gguf(file: Path, name: str) -> ModelShape:
    """The shape of a GGUF file; what the worker does not run is said in `unserved`.

    Raises as `read_header`, UnsupportedModel for an architecture or a kind of head that is not known, and InvalidModel
    where metadata and tensors contradict each other.
    """
    header = read_header(file)
    config = Config(_fields(_Metadata(header, name)), name)
    shape = read_shape(config)
    weights = [tensor for tensor in header.tensors.values() if tensor.name not in _NO_WEIGHTS]
    stored = sum(tensor.elements for tensor in weights)
    if stored != shape.parameters:
        raise InvalidModel(
            f"{name} contradicts itself: its metadata describes {shape.parameters} parameters, "
            f"its tensors hold {stored}"
        )
    elements: Counter[str] = Counter()
    for tensor in weights:
        elements[tensor.type] += tensor.elements
    return dataclasses.replace(
        shape,
        weights_dtype=elements.most_common(1)[0][0],
        stored_bytes=sum(tensor.stored_bytes for tensor in header.tensors.values()),
        unserved=why_unserved(config, shape.architecture)
        or why_gguf_unserved(name, shape.architecture, header.metadata),
    )


def _fields(metadata: _Metadata) -> dict[str, Any]:
    """The metadata as fields of a config.json."""
    translate = _TRANSLATIONS.get(metadata.architecture)
    if translate is None:
        raise UnsupportedModel(
            f"{metadata.name} is a GGUF file of architecture {metadata.architecture}, which is not known; "
            f"known are {', '.join(_TRANSLATIONS)}"
        )
    embedding = metadata.header.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.dims) != 2:
        raise InvalidModel(f"{metadata.name} has no token_embd.weight of two dimensions")
    common = metadata.required() | metadata.fields(_OPTIONAL)
    _check_heads(metadata, common)
    bias = metadata.has("blk.0.attn_q.bias") or metadata.has("blk.0.attn_qkv.bias")
    return {
        **common,
        "vocab_size": embedding.dims[1],
        "tie_word_embeddings": not metadata.has("output.weight"),
        "attention_bias": bias,
        "mlp_bias": metadata.has("blk.0.ffn_up.bias"),
        **_rotation(metadata, common),
        **translate(metadata),
    }


def _check_heads(metadata: _Metadata, common: dict[str, Any]) -> None:
    """Raise UnsupportedModel where keys and values differ, or where layers differ in more than their KV heads."""
    key, value = common.get("head_dim"), metadata.get("attention.value_length")
    if metadata.architecture != _LATENT and key is not None and value not in (None, key):
        raise UnsupportedModel(
            f"{metadata.name} has key heads of {key} and value heads of {value}, which is not known; equal ones are"
        )
    for field, sizes in common.items():
        if isinstance(sizes, list) and field != "num_key_value_heads":
            raise UnsupportedModel(
                f"{metadata.name} has layers with {field} of {', '.join(map(str, sorted(set(sizes))))}, "
                f"which is not known; one for all layers is"
            )


def _rotation(metadata: _Metadata, common: dict[str, Any]) -> dict[str, Any]:
    """How positions are rotated, as config.json says it."""
    scaling = metadata.get("rope.scaling.type")
    head_dim = head_dim_of(Config(common, metadata.name))
    rotated = metadata.get("rope.dimension_count")
    return {
        "rope_scaling": {"rope_type": scaling} if scaling not in (None, "none") else None,
        "partial_rotary_factor": 1 if rotated in (None, head_dim) else rotated / head_dim,
    }
