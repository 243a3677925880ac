"""Phi 1 and 2, whose layers have biases and one norm; Phi 3 and 4, which are built like Llama."""

from __future__ import annotations

from kvtide_sizing.models.attention import layers_of
from kvtide_sizing.models.config import Config
from kvtide_sizing.models.decoder import decoder_shape, gated_decoder
from kvtide_sizing.models.weights import Tally
from kvtide_sizing.shape import ModelShape


def phi(config: Config, architecture: str) -> ModelShape:
    """Phi 1, 1.5 and 2: attention and MLP side by side, biases everywhere, in the head too. Raises as `layers_of`."""
    hidden_size, width = config.size("hidden_size"), config.size("intermediate_size")
    layers = layers_of(config.without("sliding_window"))
    tally = Tally()
    tally.attention(hidden_size, config.size("num_attention_heads"), layers, qkv_bias=True, output_bias=True)
    tally.plain_mlp(hidden_size, width, count=len(layers))
    tally.norms(2 * (len(layers) + 1) * hidden_size)
    if config.flag("qk_layernorm"):
        tally.norms(sum(2 * 2 * layer.head_dim for layer in layers))
    tally.bias(split_elements=config.size("vocab_size"))
    return decoder_shape(config, architecture, layers, tally, width)


def phi3(config: Config, architecture: str) -> ModelShape:
    """Phi 3 and 4: one window for all layers, or none; projections are fused in the file. Raises as `gated_decoder`."""
    return gated_decoder(config, architecture)
