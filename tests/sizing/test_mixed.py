"""Mixed by measured losses: within the bytes that blocks really take, and the best of all that are."""

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtide_sizing.formats import (
    BF16,
    INT4,
    INT8,
    LayerFormat,
    Precision,
    bytes_per_token,
    choose_formats,
    layer_formats,
)
from kvtide_sizing.memory.kv import kv_layout
from kvtide_sizing.memory.sharding import with_kv_heads
from kvtide_sizing.models import catalog
from kvtide_sizing.shape import LayerSensitivity, LayerShape, ModelShape, SideSensitivity
from tests.sizing.shapes import shape_of

Sensitivity = tuple[LayerSensitivity, ...]

losses = st.floats(0, 1).map(lambda loss: round(loss, 4))
sides = st.tuples(losses, losses).map(lambda pair: SideSensitivity(min(pair), max(pair)))
layer_losses = st.builds(LayerSensitivity, sides, sides)


def drawn(layers: int, seed: int = 1) -> Sensitivity:
    """INT4 loses ten times what INT8 does, keys more than values, and a few layers much more than the others."""
    draw = random.Random(seed)
    made = []
    for _ in range(layers):
        key, value = draw.lognormvariate(-6, 1.5), draw.lognormvariate(-7, 1.5)
        made.append(LayerSensitivity(SideSensitivity(key / 10, key), SideSensitivity(value / 10, value)))
    return tuple(made)


def lost(formats: Sequence[LayerFormat], sensitivity: Sensitivity) -> float:
    def side(stored: str, measured: SideSensitivity) -> float:
        return {"BF16": 0.0, "INT8": measured.int8, "INT4": measured.int4}[stored]

    return sum(
        side(stored.key.name, layer.key) + side(stored.value.name, layer.value)
        for stored, layer in zip(formats, sensitivity, strict=True)
    )


def block_bytes(shape: ModelShape, formats: Sequence[LayerFormat]) -> int:
    """Of one token in all tables' blocks, slots' padding included."""
    layout = kv_layout(shape, formats, 64, step_tokens=512)
    return layout.block_bytes * len(layout.tables) // 64


@given(st.lists(layer_losses, min_size=1, max_size=3), st.integers(0, 184))
def test_of_one_table_no_formats_lose_less(measured: list[LayerSensitivity], more: int) -> None:
    """Against all 9 formats of each layer. A head of 64 has 72 bytes in INT4 and 256 in BF16."""
    shape, sensitivity = shape_of((LayerShape(1, 64, 64),) * len(measured)), tuple(measured)
    budget = len(measured) * (72 + more)
    chosen = choose_formats(shape, sensitivity, budget)
    assert block_bytes(shape, chosen) <= budget
    every = [LayerFormat(key, value) for key in (BF16, INT8, INT4) for value in (BF16, INT8, INT4)]
    fitting = (made for made in product(every, repeat=len(measured)) if block_bytes(shape, made) <= budget)
    assert lost(chosen, sensitivity) == pytest.approx(min(lost(made, sensitivity) for made in fitting), abs=1e-9)


@pytest.mark.parametrize("model", ["smollm2-135m", "gemma-3-270m", "gemma-3-27b", "gpt-oss-20b", "llama-3.1-8b"])
def test_in_the_bytes_of_k8v4_mixed_loses_less(model: str) -> None:
    """Windows among them, with one table or many: blocks take no more, though slots have a width of their own."""
    shape = catalog.builtin(model)
    sensitivity = drawn(shape.num_layers)
    k8v4 = layer_formats(shape, Precision.K8V4)
    chosen = choose_formats(shape, sensitivity, bytes_per_token(shape, Precision.K8V4))
    assert block_bytes(shape, chosen) <= block_bytes(shape, k8v4)
    assert lost(chosen, sensitivity) < lost(k8v4, sensitivity)


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.data())
def test_slots_of_windows_are_filled_by_layers_of_one_format(
    slots: int, full: int, windowed: int, data: st.DataObject
) -> None:
    """Blocks take what the layers take, whatever was measured: no slot is padded, and the budget is kept."""
    layers = [LayerShape(1, 64, 64)] * (slots * full) + [LayerShape(1, 64, 64, window=512)] * (slots * windowed)
    shape = shape_of(tuple(data.draw(st.permutations(layers))))
    sensitivity = tuple(data.draw(layer_losses) for _ in layers)
    budget = data.draw(st.integers(72, 256)) * len(layers)
    chosen = choose_formats(shape, sensitivity, budget)
    taken = sum(stored.bytes_per_token(layer) for stored, layer in zip(chosen, shape.layers, strict=True))
    assert block_bytes(shape, chosen) == taken <= budget


def test_the_layer_that_loses_most_keeps_most() -> None:
    """Four layers of which one is a thousand times as sensitive: its keys and values stay as they are, for which the
    others give 84 bytes each."""
    calm, wild = SideSensitivity(0.0001, 0.001), SideSensitivity(0.1, 1.0)
    shape = shape_of((LayerShape(1, 64, 64),) * 4)
    sensitivity = tuple(LayerSensitivity(side, side) for side in (calm, calm, wild, calm))
    # 3 · 72 + 256 bytes; K8V4 would be 4 · 102
    assert choose_formats(shape, sensitivity, 3 * 72 + 256) == (
        LayerFormat(INT4, INT4), LayerFormat(INT4, INT4), LayerFormat(BF16, BF16), LayerFormat(INT4, INT4),
    )  # fmt: skip


def test_a_sensitivity_of_other_layers_is_refused() -> None:
    shape = catalog.builtin("smollm2-135m")
    with pytest.raises(ValueError, match="29 layers were measured; smollm2-135m has 30"):
        choose_formats(shape, drawn(29), 9180)


def test_other_heads_were_not_measured() -> None:
    measured = replace(catalog.builtin("llama-2-13b"), sensitivity=drawn(40))
    assert with_kv_heads(measured, 40).sensitivity == drawn(40)
    assert with_kv_heads(measured, 8).sensitivity is None
