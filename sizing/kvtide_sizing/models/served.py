"""What this release's worker runs; all else that is known can be planned, and says here why it is not run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvtide_sizing.models.config import Config

# What is read from a GGUF file: kind and pre-tokenizer, as tokenizer.ggml.model and tokenizer.ggml.pre name them.
SERVED_TOKENIZERS = (
    ("gpt2", "gpt-2"),
    ("gpt2", "smollm"),
    ("gpt2", "llama-bpe"),
    ("gpt2", "dbrx"),
    ("gpt2", "gpt-4o"),
    ("gpt2", "tekken"),
    ("gpt2", "qwen2"),
    ("llama", "default"),
)


@dataclass(frozen=True)
class _Served:
    """What is served of an architecture.

    off:         options that are served only where they are absent or off
    rope:        ways to scale RoPE
    activation:  the field that names it, and its value
    rotates_part:  whether a part of each head may be rotated
    """

    off: tuple[str, ...] = ("attention_bias", "mlp_bias", "quantization_config")
    rope: tuple[str, ...] = ("default", "linear", "llama3")
    activation: tuple[str, str] = ("hidden_act", "silu")
    rotates_part: bool = False


_SERVED = {
    "LlamaForCausalLM": _Served(off=("attention_bias", "mlp_bias", "quantization_config", "sliding_window")),
    "MistralForCausalLM": _Served(),
    # Its queries, keys and values always have biases.
    "Qwen2ForCausalLM": _Served(off=("mlp_bias", "quantization_config")),
    "Qwen3ForCausalLM": _Served(),
    "Gemma3ForCausalLM": _Served(
        off=("attention_bias", "quantization_config", "final_logit_softcapping", "attn_logit_softcapping"),
        rope=("default", "linear"),
        activation=("hidden_activation", "gelu_pytorch_tanh"),
    ),
    # su is what older files call LongRoPE.
    "Phi3ForCausalLM": _Served(rope=("default", "longrope", "su"), rotates_part=True),
}
SERVED_ARCHITECTURES = tuple(_SERVED)


def why_unserved(config: Config, architecture: str) -> str | None:
    """Why the worker does not run a model of this configuration; None where it does."""
    name = config.name
    if architecture not in _SERVED:
        served = ", ".join(SERVED_ARCHITECTURES)
        return f"{name} is {architecture}, which this release plans but does not serve; {served} are served"
    served_here = _SERVED[architecture]
    for field in served_here.off:
        if config.get(field):
            return f"{name} has {field} {config.get(field)}, which is not served; {architecture} without it is"
    if isinstance(config.get("num_key_value_heads"), list):
        return f"{name} has layers of different num_key_value_heads, which is not served; equal layers are"
    field, activation = served_here.activation
    if config.get(field) not in (None, activation):
        return f"{name} has {field} {config.get(field)}, which is not served; {activation} is"
    for rope in _rope(config):
        part = rope.get("partial_rotary_factor", config.get("partial_rotary_factor") or 1)
        if part != 1 and not served_here.rotates_part:
            return f"{name} rotates a part of each head, which is not served; all of it is"
        scaling = rope.get("rope_type") or rope.get("type") or "default"
        if scaling not in served_here.rope:
            return f"{name} scales RoPE by {scaling}, which is not served; {', '.join(served_here.rope)} are"
    return None


def why_gguf_unserved(name: str, architecture: str, metadata: Mapping[str, Any]) -> str | None:
    """Why the worker does not run a GGUF file of an architecture that it runs; None where it does."""
    if architecture not in _SERVED:
        return None
    prefix = f"{metadata.get('general.architecture')}."
    for key, value in metadata.items():
        if key.startswith(prefix) and isinstance(value, tuple):
            return f"{name} has one {key} per layer, which is not served; a file with one for all layers is"
    return _why_tokenizer_unserved(name, metadata)


def _why_tokenizer_unserved(name: str, metadata: Mapping[str, Any]) -> str | None:
    kind, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    # Files from before there were pre-tokenizers do not name one.
    if kind is None or (kind, pre or "default") in SERVED_TOKENIZERS:
        return None
    return (
        f"{name} has the tokenizer {kind}/{pre}, which is not served from a GGUF file; "
        f"{', '.join('/'.join(pair) for pair in SERVED_TOKENIZERS)} are, and any from a folder with tokenizer.json"
    )


def _rope(config: Config) -> list[dict[str, Any]]:
    """How positions are rotated: once for all layers, or for each kind of layer, as newer files write it."""
    rope = config.mapping("rope_parameters") or config.mapping("rope_scaling")
    nested = [part for part in rope.values() if isinstance(part, dict)]
    return nested or [rope]
