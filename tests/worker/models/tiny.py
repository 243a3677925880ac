"""Small random models, made by transformers: the oracle and the files are its, not ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM

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


def save_tiny_llama(folder: Path, **changes: Any) -> LlamaForCausalLM:
    """Write a random float32 model as a Hugging Face folder; the model itself."""
    torch.manual_seed(5)
    model = LlamaForCausalLM(LlamaConfig(**{**DIMENSIONS, **changes})).eval()
    # As drawn, norms are all 1: a missing one would not be seen.
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    model.save_pretrained(folder)
    return model


# Seven layers: the sixth sees all tokens. Heads are not hidden_size / heads long, as in most of the family.
GEMMA3_DIMENSIONS: dict[str, Any] = {
    **DIMENSIONS,
    "num_hidden_layers": 7,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "query_pre_attn_scalar": 32,
    "sliding_window": 24,
}


def save_tiny_gemma3(folder: Path, **changes: Any) -> Gemma3ForCausalLM:
    """Write a random float32 model as a Hugging Face folder; the model itself."""
    torch.manual_seed(6)
    model = Gemma3ForCausalLM(Gemma3TextConfig(**{**GEMMA3_DIMENSIONS, **changes})).eval()
    # As drawn, norms are all 0 and scale by 1: a missing one would not be seen.
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, -0.5, 0.5)
    model.save_pretrained(folder)
    return model
