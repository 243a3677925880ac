"""Which architectures are known, and what is said of the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvtide_sizing.errors import UnsupportedModel
from kvtide_sizing.models.config import Config
from kvtide_sizing.models.families import deepseek, falcon, gemma, gpt, gpt_oss, llama, phi, qwen
from kvtide_sizing.shape import ModelShape


@dataclass(frozen=True)
class Family:
    """How an architecture is read. model_type: its other name, which a configuration has too."""

    model_type: str
    shape: Callable[[Config, str], ModelShape]


FAMILIES = {
    "LlamaForCausalLM": Family("llama", llama.llama),
    "MistralForCausalLM": Family("mistral", llama.mistral),
    "MixtralForCausalLM": Family("mixtral", llama.mixtral),
    "Qwen2ForCausalLM": Family("qwen2", qwen.qwen2),
    "Qwen3ForCausalLM": Family("qwen3", qwen.qwen3),
    "Qwen2MoeForCausalLM": Family("qwen2_moe", qwen.qwen2_moe),
    "Qwen3MoeForCausalLM": Family("qwen3_moe", qwen.qwen3_moe),
    "Gemma2ForCausalLM": Family("gemma2", gemma.gemma2),
    "Gemma3ForCausalLM": Family("gemma3_text", gemma.gemma3),
    "Gemma3ForConditionalGeneration": Family("gemma3", gemma.gemma3_with_vision),
    "PhiForCausalLM": Family("phi", phi.phi),
    "Phi3ForCausalLM": Family("phi3", phi.phi3),
    "FalconForCausalLM": Family("falcon", falcon.falcon),
    "GPT2LMHeadModel": Family("gpt2", gpt.gpt2),
    "GPTNeoXForCausalLM": Family("gpt_neox", gpt.gpt_neox),
    "DeepseekV2ForCausalLM": Family("deepseek_v2", deepseek.deepseek_v2),
    "DeepseekV3ForCausalLM": Family("deepseek_v3", deepseek.deepseek_v3),
    "GptOssForCausalLM": Family("gpt_oss", gpt_oss.gpt_oss),
}

_STATE_SPACE = "state-space layers, which keep a state of fixed size and no tokens"
_LINEAR = "linear attention, which keeps a state of fixed size and no tokens"
_SHARED = "layers that share another layer's keys and values"
_CHUNKED = "chunked attention"
_SPARSE = "sparse attention, which keeps an index beside keys and values"
_CROSS = "an encoder and cross attention"

# Kinds of attention that are not known, by the fields that only they have.
_KIND_BY_FIELD = {
    "num_kv_shared_layers": _SHARED,
    "attention_chunk_size": _CHUNKED,
    "linear_num_value_heads": _LINEAR,
    "linear_attn_config": _LINEAR,
    "attn_type_list": _LINEAR,
    "mamba_d_state": _STATE_SPACE,
    "mamba_d_ssm": _STATE_SPACE,
    "mamba_num_heads": _STATE_SPACE,
    "ssm_state_size": _STATE_SPACE,
    "state_size": _STATE_SPACE,
    "conv_L_cache": "short convolutions between attention",
    "block_types": "recurrent layers between attention",
    "lru_width": "recurrent layers between attention",
    "index_topk": _SPARSE,
    "cross_attention_layers": _CROSS,
    "is_encoder_decoder": _CROSS,
}
# The same by name, for configurations that leave those fields at their defaults.
_KIND_BY_ARCHITECTURE = {
    "Gemma3nForCausalLM": _SHARED,
    "Gemma3nForConditionalGeneration": _SHARED,
    "Llama4ForCausalLM": _CHUNKED,
    "Llama4ForConditionalGeneration": _CHUNKED,
    "Qwen3NextForCausalLM": _LINEAR,
    "KimiLinearForCausalLM": _LINEAR,
    "MiniMaxForCausalLM": _LINEAR,
    "RwkvForCausalLM": _LINEAR,
    "JambaForCausalLM": _STATE_SPACE,
    "MambaForCausalLM": _STATE_SPACE,
    "Mamba2ForCausalLM": _STATE_SPACE,
    "FalconMambaForCausalLM": _STATE_SPACE,
    "FalconH1ForCausalLM": _STATE_SPACE,
    "BambaForCausalLM": _STATE_SPACE,
    "GraniteMoeHybridForCausalLM": _STATE_SPACE,
    "NemotronHForCausalLM": _STATE_SPACE,
    "Zamba2ForCausalLM": _STATE_SPACE,
    "DeepseekV32ForCausalLM": _SPARSE,
    "T5ForConditionalGeneration": _CROSS,
    "BartForConditionalGeneration": _CROSS,
}


def read_shape(config: Config) -> ModelShape:
    """The shape that a configuration describes, as its architecture's family reads it.

    Raises UnsupportedModel for an architecture that is not known, with its kind of attention where that is;
    InvalidModel for fields that are missing, of another type, or contradict each other.
    """
    architecture = architecture_of(config)
    family = FAMILIES.get(architecture)
    if family is None:
        raise _unknown(config, architecture)
    return family.shape(config, architecture)


def architecture_of(config: Config) -> str:
    """The architecture's name: of `architectures`, or of model_type where a known one is named only there."""
    named = config.get("architectures")
    if isinstance(named, list) and named:
        return ", ".join(map(str, named))
    model_type = config.get("model_type")
    known = (architecture for architecture, family in FAMILIES.items() if family.model_type == model_type)
    return next(known, f"of model_type {model_type}")


def _unknown(config: Config, architecture: str) -> UnsupportedModel:
    known = ", ".join(FAMILIES)
    kind = _KIND_BY_ARCHITECTURE.get(architecture) or _kind_by_field(config)
    if kind is None:
        return UnsupportedModel(f"{config.name} is {architecture}, which is not known; known are {known}")
    return UnsupportedModel(f"{config.name} is {architecture}, with {kind}: that is not known; known are {known}")


def _kind_by_field(config: Config) -> str | None:
    text = config.mapping("text_config")
    for field, kind in _KIND_BY_FIELD.items():
        value = config.get(field) or text.get(field)
        if value:
            return f"{kind} ({field} {value})"
    return None
