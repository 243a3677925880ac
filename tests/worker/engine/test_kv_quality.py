"""Which precision is served, as rows of what was measured."""

from __future__ import annotations

import math

import pytest

from kvtide_sizing.formats import Precision
from kvtide_worker.engine.kv_quality import QualityCheck, fallback_sentence, limit_nats, precision_to_serve

BF16, INT8, K8V4, MIXED, INT4 = Precision.BF16, Precision.INT8, Precision.K8V4, Precision.MIXED, Precision.INT4
ALL = {BF16, INT8, K8V4, MIXED, INT4}


def checks(**divergences: float) -> dict[Precision, QualityCheck]:
    """Of a limit of 0.01 nats each."""
    return {
        Precision(name): QualityCheck(Precision(name), divergence, 0.01) for name, divergence in divergences.items()
    }


@pytest.mark.parametrize(
    ("planned", "measured", "fitting", "served"),
    [
        (BF16, {}, ALL, BF16),
        # What nobody has measured is next.
        (INT4, {}, ALL, INT4),
        (INT4, {"INT4": 0.01}, ALL, INT4),
        (INT4, {"INT4": 0.02}, ALL, K8V4),
        (INT4, {"INT4": 0.02, "K8V4": 0.005}, ALL, K8V4),
        (INT4, {"INT4": 0.02, "K8V4": 0.011}, ALL, INT8),
        (INT4, {"INT4": 0.02, "K8V4": 0.011, "INT8": 0.002}, ALL, INT8),
        # Nothing of BF16 is measured: it is what all is measured against.
        (INT4, {"INT4": 0.02, "K8V4": 0.011, "INT8": 0.5}, ALL, BF16),
        (K8V4, {"K8V4": 0.02}, ALL, INT8),
        (MIXED, {"Mixed": 0.02}, ALL, INT8),
        (INT8, {"INT8": 0.02}, ALL, BF16),
        # Logits that are not finite are no quality, whatever the limit.
        (INT8, {"INT8": math.nan}, ALL, BF16),
        (INT8, {"INT8": math.inf}, ALL, BF16),
        # What the bytes hold no sequence of is passed over; where nothing is left, nothing is served.
        (INT4, {"INT4": 0.02}, {INT4, INT8}, INT8),
        (INT4, {"INT4": 0.02}, {INT4}, None),
        (INT8, {"INT8": 0.02}, {INT8, K8V4, INT4}, None),
        # A smaller one that passed is nothing to fall back to.
        (INT8, {"INT8": 0.02, "INT4": 0.001}, ALL, BF16),
    ],
)
def test_the_next_better_one_that_passes_and_fits(
    planned: Precision, measured: dict[str, float], fitting: set[Precision], served: Precision | None
) -> None:
    assert precision_to_serve(planned, checks(**measured), fitting) is served


@pytest.mark.parametrize(
    ("precision", "max_loss", "nats"),
    [
        # 0.0015 of BF16's own noise, and the logarithm of how many times worse perplexity may be.
        (INT4, 3.0, 0.0015 + 0.0295588),  # ln 1.03
        (INT8, 1.0, 0.0015 + 0.0099503),  # ln 1.01
        (INT4, 1.0, 0.0015 + 0.0295588),  # who names INT4 allows what INT4 may cost
        (K8V4, 0.0, 0.0015 + 0.0099503),
        (INT8, 5.0, 0.0015 + 0.0487902),  # ln 1.05
    ],
)
def test_the_limit_is_the_allowed_loss_in_nats(precision: Precision, max_loss: float, nats: float) -> None:
    assert limit_nats(precision, max_loss) == pytest.approx(nats, abs=1e-7)


@pytest.mark.parametrize(
    # docs/kernels.md: measured on SmolLM2 and Gemma 3; and INT4 without basis and recent tokens, which is 6 % worse.
    ("precision", "divergence", "passed"),
    [
        (INT8, 0.0017, True), (K8V4, 0.0028, True), (MIXED, 0.0025, True), (INT4, 0.0049, True),
        (INT4, 0.0549, False), (INT4, 0.1579, False),
    ],
)  # fmt: skip
def test_what_was_measured_passes_and_what_was_rejected_fails(
    precision: Precision, divergence: float, passed: bool
) -> None:
    assert QualityCheck(precision, divergence, limit_nats(precision, 1.0)).passed is passed


def test_the_sentence_says_what_failed_by_how_much() -> None:
    found = checks(INT4=0.31, K8V4=math.nan, INT8=0.002)
    assert fallback_sentence(INT4, INT8, found, 1.0) == (
        "KV is stored as INT8 and not as INT4, as planned, which loses too much against BF16: in nats of KL divergence "
        "INT4 by 0.3100 where 0.0100 are allowed, K8V4 by a number that is not finite where 0.0100 are allowed "
        "(maxQualityLossPercent 1)"
    )
    assert fallback_sentence(INT8, None, checks(INT8=0.02), 0.5).startswith("the plan stores KV as INT8, which loses")
