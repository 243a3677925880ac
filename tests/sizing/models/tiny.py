"""A small configuration of each family, in which no two sizes are equal by chance."""

from typing import Any

import torch
import transformers

_BASE: dict[str, Any] = {
    "num_hidden_layers": 4,
    "hidden_size": 128,
    "intermediate_size": 80,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
_WINDOW = {"sliding_window": 16}
_EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_LATENT = {
    "num_key_value_heads": 32,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 10,
    "first_k_dense_replace": 1,
    "n_routed_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "n_group": 1,
    "topk_group": 1,
}
_GEMMA = {**_BASE, **_WINDOW, "head_dim": 16, "tie_word_embeddings": True}
_VISION = {
    "hidden_size": 32,
    "intermediate_size": 72,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 56,
    "patch_size": 14,
    "vision_use_head": False,
}

# What it is called: architecture, fields.
TINY: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", _BASE),
    "llama with biases": ("LlamaForCausalLM", {**_BASE, "attention_bias": True, "mlp_bias": True, "head_dim": 16}),
    "mistral": ("MistralForCausalLM", {**_BASE, **_WINDOW, "head_dim": 20}),
    "mixtral": ("MixtralForCausalLM", {**_BASE, "num_local_experts": 5, "num_experts_per_tok": 2}),
    "qwen2": ("Qwen2ForCausalLM", {**_BASE, **_WINDOW, "use_sliding_window": True, "max_window_layers": 3}),
    "qwen2 without windows": ("Qwen2ForCausalLM", {**_BASE, **_WINDOW, "use_sliding_window": False}),
    "qwen3": ("Qwen3ForCausalLM", {**_BASE, "head_dim": 16}),
    "qwen2 with experts": (
        "Qwen2MoeForCausalLM",
        {
            **_BASE,
            **_EXPERTS,
            **_WINDOW,
            "shared_expert_intermediate_size": 40,
            "decoder_sparse_step": 2,
            "use_sliding_window": True,
            "max_window_layers": 2,
        },
    ),
    "qwen3 with experts": ("Qwen3MoeForCausalLM", {**_BASE, **_EXPERTS, "head_dim": 16, "mlp_only_layers": [1]}),
    "gemma2": ("Gemma2ForCausalLM", _GEMMA),
    "gemma3": ("Gemma3ForCausalLM", {**_GEMMA, "sliding_window_pattern": 3}),
    "gemma3 by layer": (
        "Gemma3ForCausalLM",
        {**_GEMMA, "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]},
    ),
    "gemma3 with vision": (
        "Gemma3ForConditionalGeneration",
        {"text_config": {**_GEMMA, "sliding_window_pattern": 3}, "vision_config": _VISION, "mm_tokens_per_image": 4},
    ),
    "phi": ("PhiForCausalLM", _BASE),
    "phi with norms of heads": ("PhiForCausalLM", {**_BASE, "qk_layernorm": True}),
    "phi3": ("Phi3ForCausalLM", {**_BASE, **_WINDOW}),
    "falcon of one KV head": ("FalconForCausalLM", {**_BASE, "num_kv_heads": 2, "multi_query": True}),
    "falcon of groups": ("FalconForCausalLM", {**_BASE, "num_kv_heads": 2, "new_decoder_architecture": True}),
    "falcon of all heads": (
        "FalconForCausalLM",
        {**_BASE, "multi_query": False, "alibi": True, "parallel_attn": False, "bias": True},
    ),
    "gpt2": ("GPT2LMHeadModel", {"n_layer": 3, "n_embd": 48, "n_head": 6, "n_positions": 64, "vocab_size": 96}),
    "gpt-neox": ("GPTNeoXForCausalLM", _BASE),
    "deepseek-v2": ("DeepseekV2ForCausalLM", {**_BASE, **_LATENT, "q_lora_rank": None, "n_shared_experts": 2}),
    "deepseek-v3": ("DeepseekV3ForCausalLM", {**_BASE, **_LATENT, "q_lora_rank": 28, "n_shared_experts": 1}),
    "deepseek-v3 with biases": (
        "DeepseekV3ForCausalLM",
        {**_BASE, **_LATENT, "q_lora_rank": 28, "n_shared_experts": 1, "attention_bias": True},
    ),
    "gpt-oss": (
        "GptOssForCausalLM",
        {**_BASE, **_WINDOW, "head_dim": 16, "num_local_experts": 5, "num_experts_per_tok": 2},
    ),
}


_NO_TOKEN = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}


def tiny(name: str) -> dict[str, Any]:
    """The configuration as a config.json."""
    architecture, fields = TINY[name]
    return {"architectures": [architecture], **fields}


def built(config: dict[str, Any], device: str) -> Any:
    """What transformers builds from a config.json: on the device "meta", the weights' shapes without their values."""
    model_class = getattr(transformers, config["architectures"][0])
    fields = {key: value for key, value in config.items() if key not in ("architectures", "quantization_config")}
    if "vocab_size" in fields:
        fields |= _NO_TOKEN  # the usual ones lie beyond a small vocabulary
    with torch.device(device):
        return model_class(model_class.config_class(**fields)).eval()
