import json

import pytest

from kvtide_sizing.errors import InvalidModel
from kvtide_sizing.models import catalog
from kvtide_sizing.shape import LayerShape, ModelShape, Split, WeightGroup

TERMINATION_MESSAGE_BYTES = 4096  # Kubernetes' limit: pod.spec.containers.terminationMessagePath


WEIGHTS = (
    WeightGroup("embedding", 128256 * 8192, Split.SHARDED),
    WeightGroup("key and value", 80 * 2 * 1024 * 8192, Split.KV_HEADS, 80 * 2 * 1024),
    WeightGroup("norms", 161 * 8192, Split.COPIED),
)
WINDOWED, FULL = LayerShape(1, 256, 256, window=512), LayerShape(1, 256, 256)


def shape_of(layers: tuple[LayerShape, ...]) -> ModelShape:
    return ModelShape(
        name="m" * 128,
        architecture="LlamaForCausalLM",
        layers=layers,
        query_heads=64,
        hidden_size=8192,
        intermediate_size=28672,
        vocab_size=128256,
        max_context_tokens=131072,
        tied_embeddings=False,
        weights=WEIGHTS,
        weights_dtype="BF16",
        stored_bytes=141_107_412_992,
        unserved="one sentence",
    )


@pytest.mark.parametrize(
    "layers",
    [
        (LayerShape(8, 128, 128),) * 100,
        (FULL, LayerShape(4, 128, 64)) + (FULL,) * 5,
        (LayerShape(1, 576, 0),) * 61,
        # a hundred layers in the pattern of a model with windows: five of one kind, one of another
        ((WINDOWED,) * 5 + (FULL,)) * 17,
    ],
)
def test_a_shape_travels_through_a_termination_message(layers: tuple[LayerShape, ...]) -> None:
    shape = shape_of(layers)
    text = json.dumps(shape.to_json())
    assert len(text.encode()) <= TERMINATION_MESSAGE_BYTES
    assert ModelShape.from_json(json.loads(text)) == shape


def test_each_kind_of_layer_is_written_once() -> None:
    written = shape_of(((WINDOWED,) * 2 + (FULL,)) * 2 + (LayerShape(1, 576, 0),)).to_json()
    assert written["layerKinds"] == [
        {"kvHeads": 1, "headDim": 256, "window": 512},
        {"kvHeads": 1, "headDim": 256},
        {"kvHeads": 1, "headDim": 576, "valueDim": 0},
    ]
    assert written["layers"] == "0x2 1 0x2 1 2"


def test_a_layer_keeps_keys_and_values_or_one_latent() -> None:
    grouped, latent = LayerShape(8, 128, 128), LayerShape(1, 576, 0)
    assert (grouped.is_latent, grouped.elements_per_token) == (False, 2 * 8 * 128)
    assert (latent.is_latent, latent.elements_per_token) == (True, 512 + 64)


def test_weights_add_up() -> None:
    assert shape_of((FULL,)).parameters == 128256 * 8192 + 80 * 2 * 1024 * 8192 + 161 * 8192


@pytest.mark.parametrize(
    "change",
    [
        {"layerKinds": [{"kvHeads": 8}]},
        {"layers": 3},
        {"layers": "7x2"},
        {"layers": "0xtwo"},
        {"weights": [{"name": "norms", "elements": 1, "split": "Halved", "channels": 0}]},
        {"weights": None},
        {"vocabSize": None},
    ],
)
def test_json_that_is_no_shape_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(InvalidModel, match="kvtide inspect"):
        ModelShape.from_json(catalog.builtin("smollm2-135m").to_json() | change)


def test_the_widest_layer_stands_for_the_heads() -> None:
    shape = shape_of((LayerShape(1, 256, 256), LayerShape(4, 128, 128)))
    assert (shape.num_layers, shape.kv_heads, shape.head_dim) == (2, 4, 256)
