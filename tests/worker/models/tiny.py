"""Small random models, made by transformers: the oracle and the files are its, not ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

DIMENSIONS: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "eos_token_id": 2,
    "bos_token_id": 1,
    "rms_norm_eps": 2**-17,  # exact in the float32 of a GGUF field
    # Wide enough that the logits differ clearly: rounding must not decide which token is the likeliest.
    "initializer_range": 0.3,
}
# Seven layers: the sixth sees all tokens. Heads are not hidden_size / heads long, as in most of the family.
GEMMA3_DIMENSIONS: dict[str, Any] = {
    **DIMENSIONS,
    "num_hidden_layers": 7,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "query_pre_attn_scalar": 32,
    "sliding_window": 24,
}
_FAMILIES: dict[str, tuple[type[PreTrainedModel], Any, dict[str, Any]]] = {
    "llama": (LlamaForCausalLM, LlamaConfig, DIMENSIONS),
    "mistral": (MistralForCausalLM, MistralConfig, {**DIMENSIONS, "sliding_window": None}),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, DIMENSIONS),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {**DIMENSIONS, "head_dim": 32}),
    "gemma3": (Gemma3ForCausalLM, Gemma3TextConfig, GEMMA3_DIMENSIONS),
    "phi3": (Phi3ForCausalLM, Phi3Config, {**DIMENSIONS, "pad_token_id": 0}),
}


def save_tiny(folder: Path, family: str, **changes: Any) -> Any:
    """Write a random float32 model as a Hugging Face folder; the model itself."""
    model_class, config_class, dimensions = _FAMILIES[family]
    torch.manual_seed(5)
    model = model_class(config_class(**{**dimensions, **changes})).eval()
    # As drawn, norms all scale by 1 and biases are 0: a missing one would not be seen.
    middle = 0.0 if family == "gemma3" else 1.0
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, middle - 0.5, middle + 0.5)
        elif name.endswith(".bias"):
            torch.nn.init.uniform_(parameter, -1.0, 1.0)
    model.save_pretrained(folder)
    return model


def save_tiny_llama(folder: Path, **changes: Any) -> LlamaForCausalLM:
    """As `save_tiny`."""
    model: LlamaForCausalLM = save_tiny(folder, "llama", **changes)
    return model


def save_tiny_gemma3(folder: Path, **changes: Any) -> Gemma3ForCausalLM:
    """As `save_tiny`."""
    model: Gemma3ForCausalLM = save_tiny(folder, "gemma3", **changes)
    return model
