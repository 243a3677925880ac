"""Llama, and what is built like it: Mistral, and Mixtral with experts in place of the MLP."""

from __future__ import annotations

from kvtide_sizing.models.attention import layers_of
from kvtide_sizing.models.config import Config
from kvtide_sizing.models.decoder import decoder_shape, gated_decoder, routed_width
from kvtide_sizing.models.weights import Tally
from kvtide_sizing.shape import EXPERTS, ModelShape


def llama(config: Config, architecture: str) -> ModelShape:
    """Llama 2 and 3, SmolLM2, TinyLlama: full attention. Raises as `gated_decoder`."""
    bias = config.flag("attention_bias")
    return gated_decoder(
        config,
        architecture,
        slides=lambda _: False,
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=config.flag("mlp_bias"),
    )


def mistral(config: Config, architecture: str) -> ModelShape:
    """Mistral: Llama with one window for all layers, or none. Raises as `gated_decoder`."""
    return gated_decoder(config.with_defaults(num_key_value_heads=8, sliding_window=4096), architecture)


def mixtral(config: Config, architecture: str) -> ModelShape:
    """Mixtral: each layer's MLP is a choice of experts. Raises as `gated_decoder`."""
    config = config.with_defaults(num_key_value_heads=8)
    hidden_size, width = config.size("hidden_size"), config.size("intermediate_size")
    experts = config.size("num_local_experts")
    layers = layers_of(config)
    tally = Tally()
    tally.attention(hidden_size, config.size("num_attention_heads"), layers)
    tally.gated_mlp(hidden_size, width, name=EXPERTS, count=len(layers) * experts)
    tally.router(len(layers) * experts * hidden_size)
    tally.norms((2 * len(layers) + 1) * hidden_size)
    return decoder_shape(config, architecture, layers, tally, routed_width(config, "num_local_experts", width))
