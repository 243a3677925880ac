import json

import pytest

from kvtide_sizing.errors import InvalidModel
from kvtide_sizing.models import catalog
from kvtide_sizing.shape import LayerShape, ModelShape

TERMINATION_MESSAGE_BYTES = 4096  # Kubernetes' limit: pod.spec.containers.terminationMessagePath


def shape_of(layers: tuple[LayerShape, ...]) -> ModelShape:
    return ModelShape(
        name="m" * 128,
        architecture="llama",
        layers=layers,
        query_heads=64,
        hidden_size=8192,
        intermediate_size=28672,
        vocab_size=128256,
        max_context_tokens=131072,
        parameters=70_553_706_496,
        tied_embeddings=False,
        weights_dtype="BF16",
    )


@pytest.mark.parametrize(
    "layers",
    [
        (LayerShape(8, 128),) * 100,
        (LayerShape(1, 256), LayerShape(4, 128)) + (LayerShape(1, 256),) * 5,
        # a hundred layers in the pattern of a model with windows: five of one kind, one of another
        ((LayerShape(1, 256),) * 5 + (LayerShape(4, 256),)) * 17,
    ],
)
def test_a_shape_travels_through_a_termination_message(layers: tuple[LayerShape, ...]) -> None:
    shape = shape_of(layers)
    text = json.dumps(shape.to_json())
    assert len(text.encode()) <= TERMINATION_MESSAGE_BYTES
    assert ModelShape.from_json(json.loads(text)) == shape


def test_equal_neighbours_are_written_once() -> None:
    written = shape_of((LayerShape(8, 128),) * 3 + (LayerShape(4, 64),)).to_json()["layers"]
    assert written == [{"count": 3, "kvHeads": 8, "headDim": 128}, {"count": 1, "kvHeads": 4, "headDim": 64}]


@pytest.mark.parametrize(
    "change", [{"layers": [{"kvHeads": 8}]}, {"layers": 3}, {"parameters": "many"}, {"vocabSize": None}]
)
def test_json_that_is_no_shape_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(InvalidModel, match="kvtide inspect"):
        ModelShape.from_json(catalog.builtin("smollm2-135m").to_json() | change)


def test_the_widest_layer_stands_for_the_heads() -> None:
    shape = shape_of((LayerShape(1, 256), LayerShape(4, 128)))
    assert (shape.num_layers, shape.kv_heads, shape.head_dim) == (2, 4, 256)
