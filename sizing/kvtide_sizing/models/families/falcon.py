"""Falcon: one KV head for all queries (7B), or groups of them (40B, 180B)."""

from __future__ import annotations

from kvtide_sizing.models.attention import layers_of
from kvtide_sizing.models.config import Config
from kvtide_sizing.models.decoder import decoder_shape
from kvtide_sizing.models.weights import Tally
from kvtide_sizing.shape import ModelShape

_DEFAULTS = {
    "max_position_embeddings": 2048,
    "multi_query": True,
    "parallel_attn": True,
    "tie_word_embeddings": True,
}


def falcon(config: Config, architecture: str) -> ModelShape:
    """Falcon with rotary positions or ALiBi, which keep the same of a token. Raises as `layers_of`."""
    config = config.with_defaults(**_DEFAULTS)
    grouped = config.flag("new_decoder_architecture")
    if grouped or not config.flag("multi_query"):
        kv_heads = config.size_or("num_kv_heads", config.size("num_attention_heads"))
    else:
        kv_heads = 1
    hidden_size, bias = config.size("hidden_size"), config.flag("bias")
    width = config.size_or("ffn_hidden_size", 4 * hidden_size)
    layers = layers_of(config.replaced(num_key_value_heads=kv_heads))
    tally = Tally()
    tally.attention(hidden_size, config.size("num_attention_heads"), layers, qkv_bias=bias, output_bias=bias)
    tally.plain_mlp(hidden_size, width, count=len(layers), bias=bias)
    tally.norms(2 * (_norms_per_layer(config, grouped) * len(layers) + 1) * hidden_size)
    return decoder_shape(config, architecture, layers, tally, width)


def _norms_per_layer(config: Config, grouped: bool) -> int:
    """Side by side, attention and MLP share a norm, unless the newer architecture gives each its own."""
    if grouped:
        return config.size_or("num_ln_in_parallel_attn", 2)
    return 1 if config.flag("parallel_attn") else 2
