"""The table of bytes, against arithmetic written out."""

import pytest

from kvtide_sizing.errors import UnsupportedPrecision
from kvtide_sizing.formats import Precision, bytes_per_token, layer_bytes_per_token, layer_formats, precision_named
from kvtide_sizing.models import catalog
from kvtide_sizing.shape import LayerShape
from tests.sizing.shapes import shape_of


@pytest.mark.parametrize(
    ("precision", "head_dim", "key", "value"),
    [
        (Precision.BF16, 64, 64 * 2, 64 * 2),
        (Precision.FP8, 128, 128, 128),
        (Precision.INT8, 64, 64 + 2, 64 + 2),  # a float16 scale
        (Precision.INT8, 128, 128 + 2, 128 + 2),
        (Precision.K8V4, 128, 128 + 2, 64 + 4),  # values: a scale and a zero point
        (Precision.INT4, 64, 32 + 4, 32 + 4),
        (Precision.INT4, 5, 3 + 4, 3 + 4),  # two and a half bytes are three
    ],
)
def test_a_heads_bytes(precision: Precision, head_dim: int, key: int, value: int) -> None:
    stored = layer_formats(shape_of((LayerShape(1, head_dim, head_dim),)), precision)[0]
    assert (stored.key.vector_bytes(head_dim), stored.value.vector_bytes(head_dim)) == (key, value)


@pytest.mark.parametrize(
    ("model", "precision", "compression"),
    [
        # Published for a scale of 2 bytes: 1.94 times at head size 64, 1.97 at 128.
        ("smollm2-135m", Precision.INT8, 1.94),
        ("llama-2-7b", Precision.INT8, 1.97),
        # 4 bytes for scale and zero point: 3.56 times at 64, 3.76 at 128.
        ("smollm2-135m", Precision.INT4, 3.56),
        ("llama-2-7b", Precision.INT4, 3.76),
    ],
)
def test_metadata_is_counted(model: str, precision: Precision, compression: float) -> None:
    shape = catalog.builtin(model)
    ratio = bytes_per_token(shape, Precision.BF16) / bytes_per_token(shape, precision)
    assert ratio == pytest.approx(compression, abs=0.005)


def test_layers_are_counted_one_by_one() -> None:
    shape = shape_of((LayerShape(1, 256, 256), LayerShape(4, 128, 64)))
    # KV heads · (key elements + value elements) · 2 bytes
    assert layer_bytes_per_token(shape, Precision.BF16) == (1 * 512 * 2, 4 * 192 * 2)
    assert bytes_per_token(shape, Precision.BF16) == 1024 + 1536


def test_a_latent_is_one_vector_with_one_scale() -> None:
    shape = shape_of((LayerShape(1, 576, 0),))
    assert bytes_per_token(shape, Precision.BF16) == 576 * 2
    assert bytes_per_token(shape, Precision.INT8) == 576 + 2
    assert bytes_per_token(shape, Precision.INT4) == 288 + 4


def test_mixed_keeps_two_layers_at_either_end_in_bf16() -> None:
    shape = shape_of((LayerShape(1, 64, 64),) * 6)
    assert [(each.key.name, each.value.name) for each in layer_formats(shape, Precision.MIXED)] == [
        ("BF16", "BF16"),
        ("BF16", "BF16"),
        ("INT8", "INT4"),
        ("INT8", "INT4"),
        ("BF16", "BF16"),
        ("BF16", "BF16"),
    ]
    assert bytes_per_token(shape, Precision.MIXED) == 4 * 256 + 2 * (66 + 36)


@pytest.mark.parametrize("layers", [1, 2, 3, 4])
def test_mixed_of_a_few_layers_is_bf16(layers: int) -> None:
    shape = shape_of((LayerShape(1, 64, 64),) * layers)
    assert bytes_per_token(shape, Precision.MIXED) == bytes_per_token(shape, Precision.BF16)


def test_an_unknown_precision_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnsupportedPrecision, match="'int8' is no KV precision; write BF16, FP8, INT8, Mixed"):
        precision_named("int8")
