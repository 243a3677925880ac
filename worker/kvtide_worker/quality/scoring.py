"""From logits to what `statistics` counts."""

from __future__ import annotations

import torch

from kvtide_worker.quality.statistics import TokenScores


class ExactStep:
    """BF16's logits [rows, vocabulary] of one step, which all formats' are compared with; float32 from here on."""

    def __init__(self, logits: torch.Tensor) -> None:
        self._log_probabilities = logits.float().log_softmax(-1)
        self.choices = logits.argmax(-1)

    def score(self, logits: torch.Tensor, targets: torch.Tensor, into: TokenScores) -> None:
        """Add what a format's logits of the same rows say of the tokens [rows] that came next."""
        own = logits.float().log_softmax(-1)
        losses = -own.gather(1, targets[:, None]).flatten()
        terms = self._log_probabilities.exp() * (self._log_probabilities - own)
        # In float64: a sum of a vocabulary's small terms of both signs, of which little is left.
        divergences = terms.sum(-1, dtype=torch.float64).clamp_min(0)
        into.add(losses.tolist(), divergences.tolist(), (logits.argmax(-1) == self.choices).tolist())
