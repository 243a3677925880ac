"""Which formats are measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvtide_sizing.errors import UnsupportedPrecision
from kvtide_sizing.formats import Precision
from kvtide_sizing.models import catalog
from kvtide_sizing.shape import LayerSensitivity, SideSensitivity
from kvtide_worker.quality.formats import measured_formats, precisions

SHAPE = replace(catalog.builtin("smollm2-135m"), sensitivity=None)


def test_names_are_read_whatever_their_case_in_the_order_of_the_table() -> None:
    assert precisions(["int4", "K8V4", "mixed", "bf16"]) == [Precision.K8V4, Precision.MIXED, Precision.INT4]


@pytest.mark.parametrize(
    ("name", "says"), [("INT3", "'INT3' is no KV precision; write BF16"), ("FP8", "FP8 has no kernels here; measured")]
)
def test_others_are_refused_with_what_there_is(name: str, says: str) -> None:
    with pytest.raises(UnsupportedPrecision, match=says):
        precisions([name])


def test_bytes_and_bounds() -> None:
    formats = measured_formats(SHAPE, precisions(["INT8", "K8V4", "INT4"]))
    # 30 layers · 3 heads · 2 sides of 64 elements: 66 bytes in INT8, 36 in INT4.
    assert [(each.bytes_per_token(SHAPE), each.bound_percent) for each in formats] == [
        (30 * 3 * 2 * 66, 0.3),
        (30 * 3 * (66 + 36), 1),
        (30 * 3 * 2 * 36, 3),
    ]


def test_mixed_is_held_against_uniform_formats_of_as_many_bytes() -> None:
    measured = tuple(
        LayerSensitivity(SideSensitivity(1e-4, 1e-2 * (1 + layer)), SideSensitivity(1e-4, 1e-3)) for layer in range(30)
    )
    shape = replace(SHAPE, sensitivity=measured)
    formats = {each.name: each for each in measured_formats(shape, precisions(["K8V4", "Mixed", "INT4"]))}
    assert list(formats) == ["K8V4", "Mixed", "Mixed, 5 bits", "INT4"]
    assert formats["Mixed"].beside == "K8V4"
    assert formats["Mixed"].bytes_per_token(shape) <= formats["K8V4"].bytes_per_token(shape)
    five = formats["Mixed, 5 bits"]
    assert (five.beside, five.bound_percent) == ("INT4", 3)
    # 5 bits an element: INT4 in groups of 32 with 4 bytes each, 40 bytes for 64 elements.
    assert formats["INT4"].bytes_per_token(shape) < five.bytes_per_token(shape) <= 30 * 3 * 2 * 40


def test_mixed_without_a_measurement_is_one_row() -> None:
    assert [each.name for each in measured_formats(SHAPE, [Precision.MIXED])] == ["Mixed"]
