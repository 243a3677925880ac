"""A model's dimensions from a GGUF file's header.

What a family's file leaves out is what llama.cpp, which these files are made for, knows by heart (llama-model.cpp).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvtide_sizing.errors import UnsupportedModel
from kvtide_worker.models.config import Family, ModelConfig
from kvtide_worker.models.gguf_metadata import GgufMetadata
from kvtide_worker.models.rope import FactorScaling, LinearScaling, LongScaling, NoScaling, Rope, RopeScaling

_GEMMA3_PATTERN = 6  # every sixth layer sees all tokens
_GEMMA3_WINDOW_THETA = 10_000.0
_GEMMA3_27B_LAYERS = 62


def read_config(file: GgufMetadata) -> ModelConfig:
    """The dimensions. Raises UnsupportedModel for an architecture or an option that the worker does not run."""
    family = _FAMILIES.get(file.architecture)
    if family is None:
        known = ", ".join(f"'{name}'" for name in _FAMILIES)
        raise UnsupportedModel(
            f"{file.path} holds a model of architecture '{file.architecture}'; this worker runs {known}"
        )
    if file.own("expert_count", 0):
        raise UnsupportedModel(f"{file.path} is a mixture of experts; this worker runs dense models")
    return family(file)


def _llama(file: GgufMetadata) -> ModelConfig:
    """Mistral too, whose window the files do not have: llama.cpp attends to all tokens."""
    return _gated(file, "llama")


def _qwen2(file: GgufMetadata) -> ModelConfig:
    return _gated(file, "qwen2", biases=("attn_q.bias", "attn_k.bias", "attn_v.bias"))


def _qwen3(file: GgufMetadata) -> ModelConfig:
    return _gated(file, "qwen3")


def _phi3(file: GgufMetadata) -> ModelConfig:
    # 0 says that there is none.
    return _gated(file, "phi3", window=file.own("attention.sliding_window", 0) or None)


def _gated(
    file: GgufMetadata, family: Family, *, window: int | None = None, biases: tuple[str, ...] = ()
) -> ModelConfig:
    """What is built like Llama; biases: those of a layer that the worker adds."""
    for name in file.tensors:
        if name.endswith(".bias") and not name.endswith(biases):
            raise UnsupportedModel(f"{file.path} has a bias {name}, which this worker does not add")
    head_dim = _head_dim(file, file.own("embedding_length") // file.own("attention.head_count"))
    # A window as long as the context is none.
    if window is not None and window >= file.own("context_length"):
        window = None
    return ModelConfig(
        **_common(file),
        family=family,
        head_dim=head_dim,
        attention_scale=head_dim**-0.5,
        windows=(window,) * file.own("block_count"),
        rope=_rope(file, head_dim, "rope.freq_base", 10_000.0, _scaling(file)),
        window_rope=None,
    )


def _gemma3(file: GgufMetadata) -> ModelConfig:
    for option in ("attn_logit_softcapping", "final_logit_softcapping"):
        if file.own(option, 0.0):
            raise UnsupportedModel(f"{file.path} sets {option}={file.own(option)}, which this worker does not run")
    layers, head_dim = file.own("block_count"), _head_dim(file, 256)
    # The one size whose scores are not scaled by its head: query_pre_attn_scalar is hidden_size / heads there.
    is_27b = layers == _GEMMA3_27B_LAYERS
    scalar = file.own("embedding_length") / file.own("attention.head_count") if is_27b else head_dim
    window = file.own("attention.sliding_window")
    pattern = file.own("attention.sliding_window_pattern", _GEMMA3_PATTERN)
    windows = tuple(window if (layer + 1) % pattern else None for layer in range(layers))
    window_rope = _rope(file, head_dim, "rope.freq_base_swa", _GEMMA3_WINDOW_THETA, NoScaling())
    return ModelConfig(
        **_common(file),
        family="gemma3",
        head_dim=head_dim,
        attention_scale=scalar**-0.5,
        windows=windows,
        rope=_rope(file, head_dim, "rope.freq_base", None, _scaling(file)),
        window_rope=window_rope if any(windows) else None,
    )


_FAMILIES: dict[str, Callable[[GgufMetadata], ModelConfig]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma3": _gemma3,
    "phi3": _phi3,
}


def _common(file: GgufMetadata) -> dict[str, Any]:
    """What all families say under the same keys."""
    query_heads = file.own("attention.head_count")
    eos = (file.field(f"tokenizer.ggml.{name}_token_id", -1) for name in ("eos", "eot"))
    return {
        "num_layers": file.own("block_count"),
        "hidden_size": file.own("embedding_length"),
        "intermediate_size": file.own("feed_forward_length"),
        "query_heads": query_heads,
        "kv_heads": file.own("attention.head_count_kv", query_heads),
        "vocab_size": int(file.tensors["token_embd.weight"].shape[1]),
        "max_position_embeddings": file.own("context_length"),
        "rms_norm_eps": file.own("attention.layer_norm_rms_epsilon"),
        "tied_embeddings": "output.weight" not in file.tensors,
        "eos_token_ids": tuple(dict.fromkeys(token for token in eos if token >= 0)),
    }


def _head_dim(file: GgufMetadata, default: int) -> int:
    head_dim: int = file.own("attention.key_length", default)
    if file.own("attention.value_length", head_dim) != head_dim:
        raise UnsupportedModel(
            f"{file.path} has key heads longer or shorter than value heads; this worker runs equal ones"
        )
    return head_dim


def _rope(file: GgufMetadata, head_dim: int, theta_key: str, default_theta: float | None, scaling: RopeScaling) -> Rope:
    size = file.own("rope.dimension_count", head_dim)
    if size != head_dim and file.architecture != "phi3":
        raise UnsupportedModel(f"{file.path} rotates a part of each head; this worker rotates all of it")
    return Rope(file.own(theta_key, default_theta), scaling, size)


def _scaling(file: GgufMetadata) -> RopeScaling:
    if "rope_factors_long.weight" in file.tensors:
        return LongScaling(
            short=_factors(file, "rope_factors_short.weight"),
            long=_factors(file, "rope_factors_long.weight"),
            original_max_position_embeddings=file.own("rope.scaling.original_context_length"),
            attention_factor=file.own("rope.scaling.attn_factor", 1.0),
        )
    if "rope_freqs.weight" in file.tensors:
        return FactorScaling(_factors(file, "rope_freqs.weight"))
    kind = file.own("rope.scaling.type", "none")
    if kind == "none":
        return NoScaling()
    if kind == "linear":
        return LinearScaling(file.own("rope.scaling.factor"))
    raise UnsupportedModel(
        f"{file.path} scales RoPE by '{kind}'; this worker knows linear, and factors for each frequency"
    )


def _factors(file: GgufMetadata, name: str) -> tuple[float, ...]:
    return tuple(file.tensors[name].data.tolist())
