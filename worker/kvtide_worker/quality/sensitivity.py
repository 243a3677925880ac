"""How much each layer's keys and values suffer from few bits: what Mixed is chosen by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from kvtide_sizing.formats import BF16, INT4, INT8, LayerFormat
from kvtide_sizing.shape import LayerSensitivity, SideSensitivity
from kvtide_worker.quality.compare import Tick, read_text, text_passes
from kvtide_worker.quality.measured_model import MeasuredModel
from kvtide_worker.quality.windows import Window

# Of each layer: one side alone.
_ALONE: Mapping[tuple[str, str], LayerFormat] = {
    ("key", "INT8"): LayerFormat(INT8, BF16),
    ("key", "INT4"): LayerFormat(INT4, BF16),
    ("value", "INT8"): LayerFormat(BF16, INT8),
    ("value", "INT4"): LayerFormat(BF16, INT4),
}


@dataclass(frozen=True)
class Sensitivity:
    """Of each layer, the mean KL divergence from BF16, in nats a token, over so many tokens of a text."""

    model: str
    text: str
    tokens: int
    layers: Sequence[LayerSensitivity]

    def to_json(self) -> dict[str, Any]:
        """The measurement as JSON values."""
        return {
            "model": self.model,
            "text": self.text,
            "tokens": self.tokens,
            "layers": [
                {
                    name: {"INT8": side.int8, "INT4": side.int4}
                    for name, side in (("key", layer.key), ("value", layer.value))
                }
                for layer in self.layers
            ],
        }


def sensitivity_passes(layers: int, windows: Sequence[Window]) -> int:
    """How many forward passes `measure_sensitivity` takes."""
    return layers * text_passes({f"{side} {stored}": () for side, stored in _ALONE}, windows)


def measure_sensitivity(measured: MeasuredModel, text: str, windows: Sequence[Window], tick: Tick) -> Sensitivity:
    """Read the windows with one side of one layer at a time in INT8 and in INT4, all else in BF16.

    text: what it is called. Raises ValueError for what the attention does not serve.
    """
    exact = LayerFormat(BF16, BF16)
    layers = []
    for index in range(measured.shape.num_layers):
        formats = {
            f"{side} {stored}": [alone if layer == index else exact for layer in range(measured.shape.num_layers)]
            for (side, stored), alone in _ALONE.items()
        }
        scores = read_text(measured, formats, windows, tick)
        loss = {name: fmean(scores[name].divergences) for name in formats}
        layers.append(
            LayerSensitivity(
                SideSensitivity(loss["key INT8"], loss["key INT4"]),
                SideSensitivity(loss["value INT8"], loss["value INT4"]),
            )
        )
    return Sensitivity(measured.name, text, sum(window.scored for window in windows), layers)
