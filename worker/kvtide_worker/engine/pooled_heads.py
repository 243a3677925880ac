"""The gate before pooled KV heads: what they do to the model's predictions, before anybody is served."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

import torch

from kvtide_kernels.attention import AttentionStep
from kvtide_sizing.errors import UnsupportedPolicy
from kvtide_sizing.formats import FLOAT32, LayerFormat, Precision
from kvtide_worker.engine.heap import give_back_heap
from kvtide_worker.engine.kv_quality import limit_nats
from kvtide_worker.engine.messages import CalibrationTokens
from kvtide_worker.engine.quality_check import checked_windows, window_tokens
from kvtide_worker.models.checkpoint import Checkpoint
from kvtide_worker.models.model import Model
from kvtide_worker.models.pooled import PooledCheckpoint
from kvtide_worker.quality.scoring import ExactStep
from kvtide_worker.quality.simulated import SimulatedStep
from kvtide_worker.quality.statistics import TokenScores, difference
from kvtide_worker.quality.windows import Window

_EXACT = LayerFormat(FLOAT32, FLOAT32)


def load_pooled(
    pooled: PooledCheckpoint,
    native: Checkpoint,
    load: Callable[[Checkpoint], Model],
    text: CalibrationTokens,
    *,
    max_loss_percent: float,
    device: torch.device,
) -> Model:
    """The model with pooled heads, held against the one with all of them on the worker's own text.

    One is loaded after the other: of the first its logits alone are kept. Raises UnsupportedPolicy, with the numbers,
    where the predictions' mean KL divergence is beyond what max_loss_percent of perplexity allows (`limit_nats`).
    """
    windows = checked_windows(text, window_tokens(text, native.config))
    of_all_heads = _logits(load(native), windows, device)
    give_back_heap()
    model = load(pooled)
    exact, own = TokenScores(), TokenScores()
    for window, expected, found in zip(windows, of_all_heads, _logits(model, windows, device), strict=True):
        targets = torch.tensor(window.tokens[window.prefilled + 1 :], device=device)
        step = ExactStep(expected)
        step.score(expected, targets, exact)
        step.score(found, targets, own)
    _check(pooled.config.kv_heads, native.config.kv_heads, exact, own, max_loss_percent)
    give_back_heap()
    return model


@dataclass(frozen=True)
class _InFloat32:
    """A step whose sums are in float32, as the kernels' are."""

    step: AttentionStep

    def run(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """As `AttentionStep.run`."""
        return self.step.run(layer, query.float(), key.float(), value.float()).to(query.dtype)


def _logits(model: Model, windows: Sequence[Window], device: torch.device) -> list[torch.Tensor]:
    """Of each window's scored tokens, by attention that stores nothing."""
    step = _InFloat32(SimulatedStep(model.config, [_EXACT] * model.config.num_layers, {}))
    found = []
    for window in windows:
        tokens = torch.tensor(window.tokens[:-1], device=device)
        positions = torch.arange(len(tokens), device=device)
        found.append(model.forward(tokens, positions, step, positions[window.prefilled :]))
    return found


def _check(heads: int, native: int, exact: TokenScores, own: TokenScores, max_loss_percent: float) -> None:
    divergence = fmean(own.divergences)
    # Of KV in BF16, which may cost nothing itself.
    limit = limit_nats(Precision.BF16, max_loss_percent)
    if divergence <= limit:  # NaN is not
        return
    before, after = (math.exp(fmean(scores.losses)) for scores in (exact, own))
    raise UnsupportedPolicy(
        f"attention.kvHeads {heads}: with {native} KV heads pooled into {heads} the model's predictions are "
        f"{divergence:.4f} nats of KL divergence from its own, where kvCache.maxQualityLossPercent "
        f"{max_loss_percent:g} allows {limit:.4f}; perplexity on the worker's text goes from {before:.4g} to "
        f"{after:.4g} ({difference(own, exact).percent:+.3g} %). Write Native, or serve a model that was trained with "
        f"{heads} KV heads"
    )
