"""DeepSeek V2 and V3: latent attention (MLA, https://arxiv.org/abs/2405.04434, section 2.1) and many small experts."""

from __future__ import annotations

from kvtide_sizing.models.config import Config
from kvtide_sizing.models.decoder import decoder_shape, routed_width
from kvtide_sizing.models.weights import QUERY_AND_OUTPUT, Tally
from kvtide_sizing.shape import EXPERTS, LayerShape, ModelShape, Split


def deepseek_v2(config: Config, architecture: str) -> ModelShape:
    """DeepSeek V2. Raises InvalidModel where its fields are missing or contradict each other."""
    return _deepseek(
        config.with_defaults(q_lora_rank=1536, n_shared_experts=2, first_k_dense_replace=0),
        architecture,
        expert_bias=False,
    )


def deepseek_v3(config: Config, architecture: str) -> ModelShape:
    """DeepSeek V3 and R1: the router has a bias for each expert. Raises as `deepseek_v2`.

    Its files hold one layer more, which guesses the token after the next; it is not run, and not counted.
    """
    return _deepseek(
        config.with_defaults(q_lora_rank=1536, n_shared_experts=1, first_k_dense_replace=3),
        architecture,
        expert_bias=True,
    )


def _deepseek(config: Config, architecture: str, *, expert_bias: bool) -> ModelShape:
    num_layers = config.size("num_hidden_layers")
    # All heads' keys and values are made from one latent vector; beside it is kept the part of the key that is rotated.
    layer = LayerShape(kv_heads=1, head_dim=config.size("kv_lora_rank") + config.size("qk_rope_head_dim"), value_dim=0)
    hidden_size = config.size("hidden_size")
    tally = Tally()
    for _ in range(num_layers):
        _attention(config, tally)
    tally.norms((2 * num_layers + 1) * hidden_size)
    width = _mlps(config, tally, num_layers, expert_bias)
    return decoder_shape(config, architecture, (layer,) * num_layers, tally, width)


def _attention(config: Config, tally: Tally) -> None:
    """Count one layer's projections. What makes the latents is copied: every device needs the whole latent."""
    hidden_size, heads, bias = (
        config.size("hidden_size"),
        config.size("num_attention_heads"),
        config.flag("attention_bias"),
    )
    latent, rotated = config.size("kv_lora_rank"), config.size("qk_rope_head_dim")
    plain, value = config.size("qk_nope_head_dim"), config.size("v_head_dim")
    query_latent = config.size_or_none("q_lora_rank")
    query = heads * (plain + rotated)
    if query_latent is None:
        tally.matrix(QUERY_AND_OUTPUT, hidden_size, query)
    else:
        tally.matrix("latents", hidden_size, query_latent, Split.COPIED)
        tally.matrix(QUERY_AND_OUTPUT, query_latent, query)
        tally.norms(query_latent)
    tally.matrix("latents", hidden_size, latent + rotated, Split.COPIED)
    tally.norms(latent)
    tally.matrix("keys and values of latents", latent, heads * (plain + value))
    tally.matrix(QUERY_AND_OUTPUT, heads * value, hidden_size)
    if bias:
        tally.bias(copied_elements=(query_latent or 0) + latent + rotated + hidden_size)


def _mlps(config: Config, tally: Tally, num_layers: int, expert_bias: bool) -> int:
    """Count the MLPs of the first layers and the experts of the others; returns the widest MLP of a token."""
    hidden_size, width = config.size("hidden_size"), config.size("intermediate_size")
    dense = min(config.count("first_k_dense_replace"), num_layers)
    sparse = num_layers - dense
    tally.gated_mlp(hidden_size, width, count=dense)
    if not sparse:
        return width
    experts, expert_width = config.size("n_routed_experts"), config.size("moe_intermediate_size")
    shared_width = config.count("n_shared_experts") * expert_width if config.get("n_shared_experts") is not None else 0
    tally.gated_mlp(hidden_size, expert_width, name=EXPERTS, count=sparse * experts)
    tally.gated_mlp(hidden_size, shared_width, name="shared experts", count=sparse)
    tally.router(sparse * experts * (hidden_size + (1 if expert_bias else 0)))
    routed = routed_width(config, "n_routed_experts", expert_width) + shared_width
    return max(routed, width) if dense else routed
