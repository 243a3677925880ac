"""GPT-2 and GPT-NeoX (Pythia): as many KV heads as query heads, biases everywhere."""

from __future__ import annotations

from kvtide_sizing.models.attention import layers_of
from kvtide_sizing.models.config import Config
from kvtide_sizing.models.decoder import decoder_shape
from kvtide_sizing.models.weights import Tally
from kvtide_sizing.shape import ModelShape, Split

_GPT2_NAMES = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
}


def gpt2(config: Config, architecture: str) -> ModelShape:
    """GPT-2: positions are learned, up to the longest context. Raises as `layers_of`."""
    names = {ours: config.size(theirs) for ours, theirs in _GPT2_NAMES.items()}
    config = config.with_defaults(tie_word_embeddings=True).replaced(**names, num_key_value_heads=None)
    hidden_size = config.size("hidden_size")
    width = config.size_or("n_inner", 4 * hidden_size)
    layers = layers_of(config)
    tally = Tally()
    tally.attention(hidden_size, config.size("num_attention_heads"), layers, qkv_bias=True, output_bias=True)
    tally.plain_mlp(hidden_size, width, count=len(layers))
    tally.norms(2 * (2 * len(layers) + 1) * hidden_size)
    tally.add("position embedding", config.size("max_position_embeddings") * hidden_size, Split.COPIED)
    return decoder_shape(config, architecture, layers, tally, width)


def gpt_neox(config: Config, architecture: str) -> ModelShape:
    """GPT-NeoX. Raises as `layers_of`."""
    config = config.with_defaults(attention_bias=True).without("num_key_value_heads")
    hidden_size, width = config.size("hidden_size"), config.size("intermediate_size")
    bias = config.flag("attention_bias")
    layers = layers_of(config)
    tally = Tally()
    tally.attention(hidden_size, config.size("num_attention_heads"), layers, qkv_bias=bias, output_bias=bias)
    tally.plain_mlp(hidden_size, width, count=len(layers))
    tally.norms(2 * (2 * len(layers) + 1) * hidden_size)
    return decoder_shape(config, architecture, layers, tally, width)
