"""Small GGUF files as llama.cpp's convert_hf_to_gguf.py writes them, in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from transformers import Gemma3ForCausalLM, LlamaForCausalLM, PreTrainedModel

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_LLAMA_NAMES = {**_NAMES, "post_attention_layernorm": "ffn_norm"}
_GATED_NAMES = {
    **_LLAMA_NAMES,
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.qkv_proj": "attn_qkv",
    "mlp.gate_up_proj": "ffn_up",
}
_GEMMA3_NAMES = {
    **_NAMES,
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def write_llama(
    path: Path,
    model: LlamaForCausalLM,
    rope_freqs: np.ndarray | None = None,
    stored: dict[str, tuple[np.ndarray, gguf.GGMLQuantizationType]] | None = None,
    **fields: Any,
) -> None:
    """Rows of Q and K are permuted. Fields are what a test changes of the header; stored: tensors whose rows are bytes
    of blocks."""
    config = model.config
    writer = _writer(path, config, fields.get("architecture", "llama"))
    writer.add_head_count_kv(fields.get("head_count_kv", config.num_key_value_heads))
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(fields.get("rope_dimensions", config.head_dim))
    if "experts" in fields:
        writer.add_expert_count(fields["experts"])
    if "rope_scaling" in fields:
        writer.add_rope_scaling_type(fields["rope_scaling"])
    for name, parameter in model.named_parameters():
        weight, kind = (stored or {}).get(name, (parameter.detach().numpy(), None))
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        for projection, count in heads.items():
            if projection in name:
                split = weight.reshape(count, 2, weight.shape[0] // count // 2, weight.shape[1])
                weight = np.ascontiguousarray(split.swapaxes(1, 2).reshape(weight.shape))
        writer.add_tensor(_gguf_name(name, _LLAMA_NAMES), weight, raw_dtype=kind)
    if rope_freqs is not None:
        writer.add_tensor("rope_freqs.weight", rope_freqs)
    _write(writer)


def write_gated(path: Path, model: PreTrainedModel, **fields: Any) -> None:
    """Qwen 2 and 3, and Phi 3: rows stay in their order, and so do the parts of what is fused."""
    config = model.config
    rope, head_dim = config.rope_parameters, getattr(config, "head_dim", None)
    head_dim = head_dim or config.hidden_size // config.num_attention_heads
    writer = _writer(path, config, config.model_type)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(rope["rope_theta"])
    if config.model_type == "qwen3":
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if config.model_type == "phi3":
        writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1.0)))
        writer.add_sliding_window(config.sliding_window or 0)
        writer.add_rope_scaling_orig_ctx_len(config.original_max_position_embeddings)
    if rope["rope_type"] == "longrope":
        writer.add_rope_scaling_attn_factors(fields["attention_factor"])
        for length in ("long", "short"):
            writer.add_tensor(f"rope_factors_{length}.weight", np.array(rope[f"{length}_factor"], np.float32))
    for name, parameter in model.named_parameters():
        writer.add_tensor(_gguf_name(name, _GATED_NAMES), parameter.detach().numpy())
    _write(writer)


def write_gemma3(path: Path, model: Gemma3ForCausalLM, *, linear: float | None = None, softcap: float = 0.0) -> None:
    """Norms are 1 + weight; theta and pattern of the layers with a window, and the scale of scores, go unsaid."""
    config = model.config
    writer = _writer(path, config, "gemma3")
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["full_attention"]["rope_theta"])
    writer.add_sliding_window(config.sliding_window)
    if linear is not None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(linear)
    if softcap:
        writer.add_final_logit_softcapping(softcap)
    for name, parameter in model.named_parameters():
        weight = parameter.detach().numpy()
        writer.add_tensor(_gguf_name(name, _GEMMA3_NAMES), weight + 1 if name.endswith("norm.weight") else weight)
    _write(writer)


def _writer(path: Path, config: Any, architecture: str) -> gguf.GGUFWriter:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_eos_token_id(2)
    writer.add_token_list([f"token {index}" for index in range(config.vocab_size)])
    writer.add_token_scores([0.0] * config.vocab_size)
    return writer


def _gguf_name(name: str, names: dict[str, str]) -> str:
    name, _, kind = name.rpartition(".")
    if name in names:
        return f"{names[name]}.{kind}"
    _, _, layer, part = name.split(".", 3)
    return f"blk.{layer}.{names[part]}.{kind}"


def _write(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
