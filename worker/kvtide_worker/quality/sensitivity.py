"""How much each layer's keys and values suffer from few bits: what Mixed is chosen by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch

from kvtide_sizing.formats import FLOAT32, INT4, INT8, LayerFormat
from kvtide_sizing.shape import LayerSensitivity, SideSensitivity
from kvtide_worker.quality.compare import Tick
from kvtide_worker.quality.measured_model import MeasuredModel
from kvtide_worker.quality.scoring import ExactStep
from kvtide_worker.quality.simulated import SimulatedStep
from kvtide_worker.quality.statistics import TokenScores
from kvtide_worker.quality.windows import Window

# In place of BF16: to round what a small difference has moved makes it larger, by as much in every layer behind it.
_EXACT = LayerFormat(FLOAT32, FLOAT32)

# Of each layer: one side alone.
_ALONE: Mapping[tuple[str, str], LayerFormat] = {
    ("key", "INT8"): LayerFormat(INT8, FLOAT32),
    ("key", "INT4"): LayerFormat(INT4, FLOAT32),
    ("value", "INT8"): LayerFormat(FLOAT32, INT8),
    ("value", "INT4"): LayerFormat(FLOAT32, INT4),
}


@dataclass(frozen=True)
class Sensitivity:
    """Of each layer, the mean KL divergence from exact keys and values, in nats a token, over so many of a text."""

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
    return len(windows) * (1 + layers * len(_ALONE))


def measure_sensitivity(measured: MeasuredModel, text: str, windows: Sequence[Window], tick: Tick) -> Sensitivity:
    """Read the windows with one side of one layer at a time in INT8 and in INT4, all else exact; without a pool.

    text: what it is called
    """
    config = measured.model.config
    sides = [(layer, *side) for layer in range(config.num_layers) for side in _ALONE]
    scores = {side: TokenScores() for side in sides}
    for window in windows:
        tokens = torch.tensor(window.tokens, device=measured.device)
        positions = torch.arange(len(tokens) - 1, device=measured.device)

        def logits(
            formats: Sequence[LayerFormat],
            tokens: torch.Tensor = tokens,
            positions: torch.Tensor = positions,
            rows: torch.Tensor = positions[window.prefilled :],
        ) -> torch.Tensor:
            tick()
            step = SimulatedStep(config, formats, measured.bases)
            return measured.model.forward(tokens[:-1], positions, step, rows)

        exact = ExactStep(logits([_EXACT] * config.num_layers))
        for layer, side, stored in sides:
            formats = [_EXACT] * config.num_layers
            formats[layer] = _ALONE[side, stored]
            exact.score(logits(formats), tokens[window.prefilled + 1 :], scores[layer, side, stored])
    loss = {side: fmean(score.divergences) for side, score in scores.items()}
    layers = [
        LayerSensitivity(
            *(SideSensitivity(loss[layer, side, "INT8"], loss[layer, side, "INT4"]) for side in ("key", "value"))
        )
        for layer in range(config.num_layers)
    ]
    return Sensitivity(measured.name, text, sum(window.scored for window in windows), layers)
