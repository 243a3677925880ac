"""GPT-OSS: every other layer has a window, each head a sink, and the experts have biases."""

from __future__ import annotations

from kvtide_sizing.models.attention import layers_of
from kvtide_sizing.models.config import Config
from kvtide_sizing.models.decoder import decoder_shape, routed_width
from kvtide_sizing.models.weights import Tally
from kvtide_sizing.shape import EXPERTS, ModelShape, Split

_DEFAULTS = {"num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128, "attention_bias": True}


def gpt_oss(config: Config, architecture: str) -> ModelShape:
    """GPT-OSS. Sinks are weights, not tokens: the cache keeps nothing of them. Raises as `layers_of`."""
    config = config.with_defaults(**_DEFAULTS)
    hidden_size, width = config.size("hidden_size"), config.size("intermediate_size")
    heads, experts = config.size("num_attention_heads"), config.size("num_local_experts")
    bias = config.flag("attention_bias")
    layers = layers_of(config, lambda number: number % 2 == 0)
    tally = Tally()
    tally.attention(hidden_size, heads, layers, qkv_bias=bias, output_bias=bias)
    tally.add("sinks", len(layers) * heads, Split.SHARDED)
    tally.gated_mlp(hidden_size, width, name=EXPERTS, count=len(layers) * experts)
    # Not in the group of the experts: of these, only matrices are stored in four bits.
    tally.add("expert biases", len(layers) * experts * (2 * width + hidden_size), Split.SHARDED)
    tally.router(len(layers) * experts * (hidden_size + 1))
    tally.norms((2 * len(layers) + 1) * hidden_size)
    return decoder_shape(config, architecture, layers, tally, routed_width(config, "num_local_experts", width))
