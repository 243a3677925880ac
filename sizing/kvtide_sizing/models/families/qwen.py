"""Qwen 2 and 3, dense and with experts."""

from __future__ import annotations

from kvtide_sizing.models.attention import Slides, always, layers_of
from kvtide_sizing.models.config import Config
from kvtide_sizing.models.decoder import decoder_shape, gated_decoder, routed_width
from kvtide_sizing.models.weights import Tally
from kvtide_sizing.shape import EXPERTS, ModelShape


def qwen2(config: Config, architecture: str) -> ModelShape:
    """Qwen 2 and 2.5: query, key and value have biases. Raises as `gated_decoder`."""
    config = config.with_defaults(num_key_value_heads=32, max_window_layers=28)
    return gated_decoder(_without_unused_window(config), architecture, slides=_upper_layers(config), qkv_bias=True)


def qwen3(config: Config, architecture: str) -> ModelShape:
    """Qwen 3: no biases, but norms of queries and keys. Raises as `gated_decoder`."""
    config = config.with_defaults(num_key_value_heads=32, max_window_layers=28, head_dim=128)
    bias = config.flag("attention_bias")
    return gated_decoder(
        _without_unused_window(config),
        architecture,
        slides=_upper_layers(config),
        qkv_bias=bias,
        output_bias=bias,
        head_norms=True,
    )


def qwen2_moe(config: Config, architecture: str) -> ModelShape:
    """Qwen 1.5 and 2 with experts: one more expert, behind a gate, is every token's. Raises as `gated_decoder`."""
    config = config.with_defaults(num_key_value_heads=16, max_window_layers=28, qkv_bias=True, decoder_sparse_step=1)
    most = config.count("max_window_layers")
    layers = layers_of(_without_unused_window(config), lambda number: number % 2 == 0 and number < most)
    hidden_size, shared = config.size("hidden_size"), config.size("shared_expert_intermediate_size")
    tally = Tally()
    tally.attention(hidden_size, config.size("num_attention_heads"), layers, qkv_bias=config.flag("qkv_bias"))
    sparse = _sparse_layers(config, len(layers))
    tally.gated_mlp(hidden_size, shared, name="shared experts", count=sparse)
    tally.router(sparse * hidden_size)
    tally.norms((2 * len(layers) + 1) * hidden_size)
    width = _experts(config, tally, sparse, len(layers) - sparse, shared)
    return decoder_shape(config, architecture, layers, tally, width)


def qwen3_moe(config: Config, architecture: str) -> ModelShape:
    """Qwen 3 with experts. Raises as `gated_decoder`."""
    config = config.with_defaults(num_key_value_heads=4, decoder_sparse_step=1)
    layers = layers_of(_without_unused_window(config), always)
    hidden_size, bias = config.size("hidden_size"), config.flag("attention_bias")
    tally = Tally()
    tally.attention(hidden_size, config.size("num_attention_heads"), layers, qkv_bias=bias, output_bias=bias)
    sparse = _sparse_layers(config, len(layers))
    tally.norms((2 * len(layers) + 1) * hidden_size + sum(2 * layer.head_dim for layer in layers))
    width = _experts(config, tally, sparse, len(layers) - sparse, 0)
    return decoder_shape(config, architecture, layers, tally, width)


def _experts(config: Config, tally: Tally, sparse: int, dense: int, shared_width: int) -> int:
    """Count experts and routers of the sparse layers, and MLPs of the dense; returns the widest MLP of a token."""
    hidden_size, experts = config.size("hidden_size"), config.size("num_experts")
    width = config.size("moe_intermediate_size")
    tally.gated_mlp(hidden_size, width, name=EXPERTS, count=sparse * experts)
    tally.router(sparse * experts * hidden_size)
    widest = routed_width(config, "num_experts", width) + shared_width if sparse else 0
    if not dense:
        return widest
    tally.gated_mlp(hidden_size, config.size("intermediate_size"), count=dense)
    return max(widest, config.size("intermediate_size"))


def _sparse_layers(config: Config, num_layers: int) -> int:
    """How many layers have experts: every decoder_sparse_step-th that mlp_only_layers does not name."""
    dense = config.get("mlp_only_layers") or []
    step = config.size("decoder_sparse_step")
    return sum(number not in dense and (number + 1) % step == 0 for number in range(num_layers))


def _without_unused_window(config: Config) -> Config:
    """Qwen's files name a window that counts only with use_sliding_window."""
    if config.flag("use_sliding_window"):
        return config
    return config.without("sliding_window")


def _upper_layers(config: Config) -> Slides:
    """The window is for the layers from max_window_layers on."""
    first = config.count("max_window_layers")
    return lambda number: number >= first
