"""What this release's worker runs; all else that is known can be planned, and says here why it is not run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvtide_sizing.models.config import Config

SERVED_ARCHITECTURES = ("LlamaForCausalLM", "Gemma3ForCausalLM")
SERVED_ROPE_SCALINGS = ("default", "linear", "llama3")

# What is read from a GGUF file: kind and pre-tokenizer, as tokenizer.ggml.model and tokenizer.ggml.pre name them.
SERVED_TOKENIZERS = (("gpt2", "gpt-2"), ("gpt2", "smollm"), ("llama", "default"))

_LLAMA, _GEMMA3 = SERVED_ARCHITECTURES
_ROPE_SCALINGS = {_LLAMA: SERVED_ROPE_SCALINGS, _GEMMA3: ("default", "linear")}
_ACTIVATION = {_LLAMA: ("hidden_act", "silu"), _GEMMA3: ("hidden_activation", "gelu_pytorch_tanh")}
_TOKENIZER_KIND = {_LLAMA: "gpt2", _GEMMA3: "llama"}
# Served only where they are absent or off.
_OPTIONS = {
    _LLAMA: ("attention_bias", "mlp_bias", "quantization_config", "sliding_window"),
    _GEMMA3: (
        "attention_bias",
        "quantization_config",
        "final_logit_softcapping",
        "attn_logit_softcapping",
    ),
}


def why_unserved(config: Config, architecture: str) -> str | None:
    """Why the worker does not run a model of this configuration; None where it does."""
    name = config.name
    if architecture not in SERVED_ARCHITECTURES:
        served = " and ".join(SERVED_ARCHITECTURES)
        return f"{name} is {architecture}, which this release plans but does not serve; {served} are served"
    for field in _OPTIONS[architecture]:
        if config.get(field):
            return f"{name} has {field} {config.get(field)}, which is not served; {architecture} without it is"
    if isinstance(config.get("num_key_value_heads"), list):
        return f"{name} has layers of different num_key_value_heads, which is not served; equal layers are"
    field, activation = _ACTIVATION[architecture]
    if config.get(field) not in (None, activation):
        return f"{name} has {field} {config.get(field)}, which is not served; {activation} is"
    for rope in _rope(config):
        if rope.get("partial_rotary_factor", config.get("partial_rotary_factor") or 1) != 1:
            return f"{name} rotates a part of each head, which is not served; all of it is"
        scaling = rope.get("rope_type") or rope.get("type") or "default"
        if scaling not in _ROPE_SCALINGS[architecture]:
            served = ", ".join(_ROPE_SCALINGS[architecture])
            return f"{name} scales RoPE by {scaling}, which is not served; {served} are"
    return None


def why_gguf_unserved(name: str, architecture: str, metadata: Mapping[str, Any]) -> str | None:
    """Why the worker does not run a GGUF file of an architecture that it runs; None where it does."""
    if architecture not in SERVED_ARCHITECTURES:
        return None
    prefix = f"{metadata.get('general.architecture')}."
    for key, value in metadata.items():
        if key.startswith(prefix) and isinstance(value, tuple):
            return f"{name} has one {key} per layer, which is not served; a file with one for all layers is"
    return _why_tokenizer_unserved(name, architecture, metadata)


def _why_tokenizer_unserved(name: str, architecture: str, metadata: Mapping[str, Any]) -> str | None:
    kind, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if kind is None:
        return None
    served = [pair for pair in SERVED_TOKENIZERS if pair[0] == _TOKENIZER_KIND[architecture]]
    # Files from before there were pre-tokenizers do not name one.
    if (kind, pre or "default") in served:
        # Files that do not say it mean a space before every text.
        if kind == "llama" and metadata.get("tokenizer.ggml.add_space_prefix", True):
            return (
                f"{name} puts a space before every text (add_space_prefix), which is not served from a GGUF file; "
                f"it is from a folder with tokenizer.json"
            )
        return None
    return (
        f"{name} has the tokenizer {kind}/{pre}, which is not served from a GGUF file of {architecture}; "
        f"{', '.join('/'.join(pair) for pair in served)} {'is' if len(served) == 1 else 'are'}, "
        f"and any from a folder with tokenizer.json"
    )


def _rope(config: Config) -> list[dict[str, Any]]:
    """How positions are rotated: once for all layers, or for each kind of layer, as newer files write it."""
    rope = config.mapping("rope_parameters") or config.mapping("rope_scaling")
    nested = [part for part in rope.values() if isinstance(part, dict)]
    return nested or [rope]
