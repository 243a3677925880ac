import pytest

from kvtide_sizing.errors import UnsupportedPrecision
from kvtide_sizing.formats import Precision, bytes_per_token, head_format, layer_bytes_per_token, served
from kvtide_sizing.shape import LayerShape
from tests.sizing.test_shape import shape_of


def test_bf16_stores_two_bytes_an_element() -> None:
    row = head_format(Precision.BF16, head_dim=64)
    assert (row.key_bytes, row.value_bytes, row.bytes_per_token) == (128, 128, 256)


def test_layers_are_counted_one_by_one() -> None:
    shape = shape_of((LayerShape(1, 256), LayerShape(4, 128)))
    # KV heads · (256 + 256 elements, then 128 + 128) · 2 bytes
    assert layer_bytes_per_token(shape, Precision.BF16) == (1 * 512 * 2, 4 * 256 * 2)
    assert bytes_per_token(shape, Precision.BF16) == 1024 + 2048


@pytest.mark.parametrize("precision", [Precision.INT8, Precision.K8V4, Precision.INT4, Precision.MIXED])
def test_a_precision_without_a_row_is_refused_by_name(precision: Precision) -> None:
    assert precision not in served()
    with pytest.raises(UnsupportedPrecision, match=rf"{precision.value} is not served yet; write BF16"):
        head_format(precision, head_dim=64)
