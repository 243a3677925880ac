"""Scores against torch's own loss functions."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy, kl_div

from kvtide_worker.quality.scoring import ExactStep
from kvtide_worker.quality.statistics import TokenScores


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scores_are_torchs(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    exact, own = (torch.randn(37, 301, generator=generator).mul(3).to(dtype) for _ in range(2))
    targets = torch.randint(301, (37,), generator=generator)
    found = TokenScores()
    ExactStep(exact).score(own, targets, found)

    theirs, mine = (logits.double().log_softmax(-1) for logits in (exact, own))
    assert found.losses == pytest.approx(cross_entropy(own.double(), targets, reduction="none").tolist(), rel=1e-5)
    wanted = kl_div(mine, theirs, reduction="none", log_target=True).sum(-1)
    assert found.divergences == pytest.approx(wanted.tolist(), rel=1e-4)
    assert found.agreed == (exact.argmax(-1) == own.argmax(-1)).tolist()


def test_equal_logits_do_not_diverge() -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(2))
    found = TokenScores()
    ExactStep(logits).score(logits, torch.tensor([1, 2, 3]), found)
    assert found.divergences == [0, 0, 0]
    assert found.agreed == [True] * 3
