"""What each layer keeps of a token, from a configuration: heads, their size, and windows."""

from __future__ import annotations

from collections.abc import Callable

from kvtide_sizing.errors import InvalidModel, UnsupportedModel
from kvtide_sizing.models.config import Config
from kvtide_sizing.shape import LayerShape

FULL, SLIDING = "full_attention", "sliding_attention"

# Whether a layer, by its number from 0, attends through the window.
Slides = Callable[[int], bool]


def always(_: int) -> bool:
    """Every layer slides, if there is a window at all."""
    return True


def layers_of(config: Config, slides: Slides = always) -> tuple[LayerShape, ...]:
    """The layers of a model with ordinary heads; slides says which have the window where layer_types does not.

    Head size is head_dim where it is given, never hidden size / heads then. A window of the model's whole context is
    none: a sequence never leaves it.

    Raises InvalidModel where the fields contradict each other, UnsupportedModel for another kind of layer.
    """
    num_layers = config.size("num_hidden_layers")
    query_heads = config.size("num_attention_heads")
    head_dim = head_dim_of(config)
    kv_heads = _kv_heads(config, num_layers, query_heads)
    windows = _windows(config, num_layers, slides)
    return tuple(LayerShape(heads, head_dim, head_dim, window) for heads, window in zip(kv_heads, windows, strict=True))


def head_dim_of(config: Config) -> int:
    """Elements of one head. Raises InvalidModel where it is not given and does not follow."""
    given = config.size_or_none("head_dim")
    if given is not None:
        return given
    hidden_size, query_heads = config.size("hidden_size"), config.size("num_attention_heads")
    if hidden_size % query_heads:
        raise InvalidModel(
            f"{config.name} contradicts itself: it gives no head size, and its hidden size {hidden_size} "
            f"is not a multiple of its {query_heads} query heads"
        )
    return hidden_size // query_heads


def _kv_heads(config: Config, num_layers: int, query_heads: int) -> list[int]:
    """KV heads of each layer: one number for all of them, or a list; as many as query heads where none is given."""
    key = "num_key_value_heads"
    if isinstance(config.get(key), list):
        counts = [Config({key: count}, config.name).size(key) for count in config.per_layer(key, num_layers) or []]
    else:
        counts = [config.size_or(key, query_heads)] * num_layers
    for count in counts:
        if query_heads % count:
            raise InvalidModel(
                f"{config.name} contradicts itself: {query_heads} query heads cannot be shared by {count} KV heads"
            )
    return counts


def _windows(config: Config, num_layers: int, slides: Slides) -> list[int | None]:
    window = config.size_or_none("sliding_window")
    if window is not None and window >= config.size("max_position_embeddings"):
        window = None
    kinds = config.per_layer("layer_types", num_layers)
    if kinds is None:
        return [window if slides(number) else None for number in range(num_layers)]
    unknown = sorted({str(kind) for kind in kinds} - {FULL, SLIDING})
    if unknown:
        raise UnsupportedModel(
            f"{config.name} has layers of {', '.join(unknown)}, which is not known; {FULL} and {SLIDING} are"
        )
    if SLIDING in kinds and config.get("sliding_window") is None:
        raise InvalidModel(
            f"{config.name} contradicts itself: {kinds.count(SLIDING)} of its layer_types are {SLIDING}, "
            f"sliding_window is null"
        )
    return [window if kind == SLIDING else None for kind in kinds]
