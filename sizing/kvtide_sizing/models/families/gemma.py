"""Gemma 2 and 3: windows in most layers, and heads whose size is not hidden size / heads."""

from __future__ import annotations

import dataclasses

from kvtide_sizing.errors import UnsupportedModel
from kvtide_sizing.models.config import Config
from kvtide_sizing.models.decoder import gated_decoder
from kvtide_sizing.shape import ModelShape, Split, WeightGroup

_GEMMA2 = {"num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096, "tie_word_embeddings": True}
# The configurations of Gemma 3's larger models leave out whatever is as here.
_GEMMA3 = {
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
    "tie_word_embeddings": True,
}
_VISION = {"num_channels": 3}


def gemma2(config: Config, architecture: str) -> ModelShape:
    """Gemma 2: every other layer has a window, the first one too; four norms a layer. Raises as `gated_decoder`."""
    config = config.with_defaults(**_GEMMA2)
    bias = config.flag("attention_bias")
    return gated_decoder(
        config,
        architecture,
        slides=lambda number: number % 2 == 0,
        qkv_bias=bias,
        output_bias=bias,
        norms_per_layer=4,
    )


def gemma3(config: Config, architecture: str) -> ModelShape:
    """Gemma 3, text: of each sliding_window_pattern layers the last has no window.

    Raises as `gated_decoder`, and UnsupportedModel where tokens attend to later ones too.
    """
    config = config.with_defaults(**_GEMMA3)
    if config.flag("use_bidirectional_attention"):
        raise UnsupportedModel(f"{config.name} has bidirectional attention, which is not known; causal is")
    bias, period = config.flag("attention_bias"), config.size("sliding_window_pattern")
    return gated_decoder(
        config,
        architecture,
        slides=lambda number: (number + 1) % period != 0,
        qkv_bias=bias,
        output_bias=bias,
        head_norms=True,
        norms_per_layer=4,
    )


def gemma3_with_vision(config: Config, architecture: str) -> ModelShape:
    """Gemma 3 with eyes: the text model of text_config, and what turns an image into its tokens. Raises as `gemma3`."""
    shape = gemma3(config.nested("text_config"), architecture)
    vision = config.nested("vision_config").with_defaults(**_VISION)
    # Every device has all of it: the bound that holds for engines that split it and for those that do not.
    tower = WeightGroup("vision", _vision_elements(vision, shape.hidden_size), Split.COPIED)
    return dataclasses.replace(shape, weights=(*shape.weights, tower))


def _vision_elements(vision: Config, text_size: int) -> int:
    """Elements of SigLIP's tower (patches, positions, layers with biases, a last norm) and of the projection."""
    size, width, layers = vision.size("hidden_size"), vision.size("intermediate_size"), vision.size("num_hidden_layers")
    patch = vision.size("patch_size")
    embedding = vision.size("num_channels") * patch**2 * size + size + (vision.size("image_size") // patch) ** 2 * size
    attention = 4 * (size * size + size)
    mlp = 2 * size * width + width + size
    layer_norms = 2 * 2 * size
    projection = size * text_size + size
    return embedding + layers * (attention + mlp + layer_norms) + 2 * size + projection
