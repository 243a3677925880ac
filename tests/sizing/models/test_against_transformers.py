"""Every shape against what transformers builds from the same configuration: its weights, and the cache it fills."""

from typing import Any

import pytest
import torch

from kvtide_sizing.errors import InvalidModel
from kvtide_sizing.formats import Precision, layer_bytes_per_token
from kvtide_sizing.models import catalog
from kvtide_sizing.models.config_json import shape_of_config
from kvtide_sizing.shape import ModelShape
from tests.sizing.models.tiny import TINY, built, tiny

TOKENS = 12  # fewer than the window, so that all of a layer's tokens are in its cache
# transformers keeps a copy of its KV head for every query head of this one (`broadcast_to` in its _split_heads).
KEPT_FOR_QUERY_HEADS = ("falcon of groups",)


def elements(model: Any) -> int:
    """Parameters, tied ones once, and what else a file keeps: the bias of DeepSeek V3's router is no parameter."""
    names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    buffers = sum(tensor.numel() for name, tensor in model.state_dict().items() if name not in names)
    return sum(parameter.numel() for parameter in model.parameters()) + buffers


def shape_of(name: str) -> ModelShape:
    return shape_of_config(tiny(name), name)


@pytest.mark.parametrize("name", catalog.names())
def test_a_built_in_models_weights_are_transformers(name: str) -> None:
    assert catalog.builtin(name).parameters == elements(built(catalog.config(name), "meta"))


@pytest.mark.parametrize("name", TINY)
def test_a_familys_weights_are_transformers(name: str) -> None:
    assert shape_of(name).parameters == elements(built(tiny(name), "meta"))


def kept(name: str) -> tuple[list[int], list[bool]]:
    """What transformers keeps of one token in each layer, in bytes of BF16, and which layers forget."""
    torch.manual_seed(0)
    model = built(tiny(name), "cpu").to(torch.bfloat16)
    with torch.inference_mode():
        cache = model(torch.arange(TOKENS)[None], use_cache=True).past_key_values
    return (
        [(layer.keys.nbytes + layer.values.nbytes) // TOKENS for layer in cache.layers],
        [layer.is_sliding for layer in cache.layers],
    )


@pytest.mark.parametrize("name", [name for name in TINY if name not in KEPT_FOR_QUERY_HEADS])
def test_a_token_keeps_what_transformers_keeps_of_it(name: str) -> None:
    """DeepSeek's too: transformers keeps the latent and the rotated part of the key."""
    shape = shape_of(name)
    assert kept(name) == (
        list(layer_bytes_per_token(shape, Precision.BF16)),
        [layer.window is not None for layer in shape.layers],
    )


def test_a_head_that_transformers_copies_is_kept_once() -> None:
    shape = shape_of("falcon of groups")
    copies = shape.query_heads // shape.kv_heads
    assert copies == 16
    assert kept("falcon of groups")[0] == [copies * size for size in layer_bytes_per_token(shape, Precision.BF16)]


FIELDS = [
    (name, field)
    for name, (_, fields) in TINY.items()
    for field in fields
    # Not about sizes, or parts that are never left out.
    if field not in ("text_config", "vision_config", "n_group", "topk_group", "mm_tokens_per_image")
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "field"), FIELDS)
def test_what_a_configuration_leaves_out_is_asked_for_or_what_transformers_takes(name: str, field: str) -> None:
    config = {key: value for key, value in tiny(name).items() if key != field}
    try:
        outcome: str | int = shape_of_config(config, name).parameters
    except InvalidModel as error:
        outcome = str(error)
    assert field in outcome if isinstance(outcome, str) else outcome == elements(built(config, "meta"))
