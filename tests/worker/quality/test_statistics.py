"""Rows against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest

from kvtide_worker.quality.statistics import TokenScores, answer_row, difference, text_row


def scores(
    losses: list[float], divergences: list[float] | None = None, agreed: list[bool] | None = None
) -> TokenScores:
    return TokenScores(losses, divergences or [0.0] * len(losses), agreed or [True] * len(losses))


def test_a_row_is_of_the_means() -> None:
    own = scores([math.log(2), math.log(8)], [0.1, 0.3], [True, False])
    row = text_row(own, scores([math.log(2), math.log(2)]))
    assert row.tokens == 2
    assert row.perplexity == pytest.approx(4)  # the root of 2 · 8
    assert row.worse.percent == pytest.approx(100)  # 4 is twice 2
    assert row.divergence == pytest.approx(0.2)
    assert row.agreed_percent == pytest.approx(50)


def test_the_error_is_that_of_the_paired_difference() -> None:
    # Differences 0.1, 0.3, 0.2, 0.2: mean 0.2, variance (0.01 + 0.01) / 3, error of the mean sqrt(0.02 / 3 / 4).
    found = difference(scores([1.1, 5.3, 0.2, 3.2]), scores([1.0, 5.0, 0.0, 3.0]))
    assert found.percent == pytest.approx(22.1402758)  # e^0.2 = 1.221402758
    assert found.error_percent == pytest.approx(122.1402758 * math.sqrt(0.02 / 12))


def test_losses_that_vary_alike_have_no_error() -> None:
    found = difference(scores([1.5, 9.5, 4.5]), scores([1.0, 9.0, 4.0]))
    assert found.error_percent == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(("own", "other"), [([1.0], [1.0]), ([1.0, 2.0], [1.0])])
def test_what_has_no_pairs_has_no_difference(own: list[float], other: list[float]) -> None:
    with pytest.raises(ValueError, match="two at least are needed"):
        difference(scores(own), scores(other))


def test_answers() -> None:
    row = answer_row([[True, True, False, True], [False, True], [True, True, True], []])
    assert row.tokens == 9
    assert row.agreed_percent == pytest.approx(100 * 7 / 9)
    assert row.first_difference == 2  # of 2, 0 and the whole answer of 3
    assert (row.answers, row.same) == (3, 1)


def test_no_answer_is_refused() -> None:
    with pytest.raises(ValueError, match="no answer to compare"):
        answer_row([[], []])
