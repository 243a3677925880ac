"""From logits to what `statistics` counts."""

from __future__ import annotations

import torch

from kvtide_worker.quality.statistics import TokenScores

# Rows that are looked at together: of a vocabulary of 262,144 each takes a megabyte, several times.
_ROWS = 16


class ExactStep:
    """BF16's logits [rows, vocabulary] of one step, which all formats' are compared with, in float32."""

    def __init__(self, logits: torch.Tensor) -> None:
        self._log_probabilities = [rows.float().log_softmax(-1) for rows in logits.split(_ROWS)]

    def score(self, logits: torch.Tensor, targets: torch.Tensor, into: TokenScores) -> None:
        """Add what a format's logits of the same rows say of the tokens [rows] that came next."""
        chunks = zip(self._log_probabilities, logits.split(_ROWS), targets.split(_ROWS), strict=True)
        for exact, rows, next_tokens in chunks:
            own = rows.float().log_softmax(-1)
            losses = -own.gather(1, next_tokens[:, None]).flatten()
            # Summed in float64: a vocabulary's small terms of both signs, of which little is left.
            divergences = (exact.exp() * (exact - own)).sum(-1, dtype=torch.float64).clamp_min(0)
            agreed = own.argmax(-1) == exact.argmax(-1)
            into.add(losses.tolist(), divergences.tolist(), agreed.tolist())
