"""A decoder between its embedding and its head: what all families share."""

from __future__ import annotations

from collections.abc import Sequence

from kvtide_sizing.errors import InvalidModel
from kvtide_sizing.models.attention import Slides, always, layers_of
from kvtide_sizing.models.config import Config
from kvtide_sizing.models.weights import Tally
from kvtide_sizing.shape import EMBEDDING, HEAD, LayerShape, ModelShape, Split


def decoder_shape(
    config: Config, architecture: str, layers: Sequence[LayerShape], tally: Tally, intermediate_size: int
) -> ModelShape:
    """The shape of a decoder whose layers' weights are counted in tally; embedding and head are added to it."""
    hidden_size, vocab_size = config.size("hidden_size"), config.size("vocab_size")
    tied = config.flag("tie_word_embeddings")
    tally.add(EMBEDDING, vocab_size * hidden_size, Split.SHARDED)
    if not tied:
        tally.add(HEAD, vocab_size * hidden_size, Split.SHARDED)
    return ModelShape(
        name=config.name,
        architecture=architecture,
        layers=tuple(layers),
        query_heads=config.size("num_attention_heads"),
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        vocab_size=vocab_size,
        max_context_tokens=config.size("max_position_embeddings"),
        tied_embeddings=tied,
        weights=tally.groups(),
    )


def gated_decoder(
    config: Config,
    architecture: str,
    *,
    slides: Slides = always,
    qkv_bias: bool = False,
    output_bias: bool = False,
    mlp_bias: bool = False,
    head_norms: bool = False,
    norms_per_layer: int = 2,
) -> ModelShape:
    """The shape of a decoder with RMS norms and gated MLPs, Llama's kind.

    head_norms: each layer has a norm of one head's size for queries and one for keys. Raises as `layers_of`.
    """
    hidden_size, width = config.size("hidden_size"), config.size("intermediate_size")
    layers = layers_of(config, slides)
    tally = Tally()
    tally.attention(hidden_size, config.size("num_attention_heads"), layers, qkv_bias=qkv_bias, output_bias=output_bias)
    tally.gated_mlp(hidden_size, width, count=len(layers), bias=mlp_bias)
    tally.norms((norms_per_layer * len(layers) + 1) * hidden_size)
    if head_norms:
        tally.norms(sum(2 * layer.head_dim for layer in layers))
    return decoder_shape(config, architecture, layers, tally, width)


def routed_width(config: Config, experts_key: str, width: int) -> int:
    """The width of all experts that one token goes through. Raises InvalidModel where it asks for more than there
    are."""
    experts, chosen = config.size(experts_key), config.size("num_experts_per_tok")
    if chosen > experts:
        raise InvalidModel(
            f"{config.name} contradicts itself: each token goes to {chosen} experts (num_experts_per_tok), "
            f"and there are {experts} ({experts_key})"
        )
    return chosen * width
