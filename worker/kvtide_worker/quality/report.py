"""What `kvtide quality` found, as values: for a table, for JSON, for the exit status."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvtide_worker.quality.statistics import AnswerRow, Difference, TextRow


@dataclass(frozen=True)
class FormatReport:
    """One format.

    bytes_per_token:  over all layers
    bound_percent:    how much worse its perplexity may be; None for BF16, which is not measured against anything
    answers:          None where no answers were asked for
    beside:           what Mixed is measured against too: a uniform format's name, and how much worse it is than that
    """

    name: str
    bytes_per_token: int
    bound_percent: float | None
    text: TextRow
    answers: AnswerRow | None
    beside: tuple[str, Difference] | None = None

    @property
    def passed(self) -> bool:
        """Whether it is within its bound."""
        return self.bound_percent is None or self.text.worse.percent <= self.bound_percent

    @property
    def certain(self) -> bool:
        """Whether the error is below half of the bound, so that passing or missing says something."""
        return self.bound_percent is None or 2 * self.text.worse.error_percent < self.bound_percent

    def to_json(self) -> dict[str, Any]:
        """The format as JSON values."""
        data: dict[str, Any] = {
            "format": self.name,
            "bytesPerToken": self.bytes_per_token,
            "perplexity": self.text.perplexity,
            "worsePercent": self.text.worse.percent,
            "worseErrorPercent": self.text.worse.error_percent,
            "boundPercent": self.bound_percent,
            "passed": self.passed,
            "klDivergence": self.text.divergence,
            "topOnePercent": self.text.agreed_percent,
        }
        if self.answers is not None:
            data["greedy"] = {
                "tokens": self.answers.tokens,
                "agreedPercent": self.answers.agreed_percent,
                "medianTokensUntilFirstDifference": self.answers.first_difference,
                "answers": self.answers.answers,
                "sameAnswers": self.answers.same,
            }
        if self.beside is not None:
            name, difference = self.beside
            data["beside"] = {
                "format": name,
                "worsePercent": difference.percent,
                "worseErrorPercent": difference.error_percent,
            }
        return data


@dataclass(frozen=True)
class QualityReport:
    """All formats of one model on the same texts, BF16 first.

    texts: what they are called; dtype: of arithmetic, and of BF16's weights; tokens: how many were scored
    weights: how the matrices of all rows but BF16's are held
    """

    model: str
    dtype: str
    texts: Sequence[str]
    tokens: int
    formats: Sequence[FormatReport]
    weights: str = "BF16"

    @property
    def passed(self) -> bool:
        """Whether every format is within its bound."""
        return all(each.passed for each in self.formats)

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values."""
        return {
            "model": self.model,
            "dtype": self.dtype,
            "weights": self.weights,
            "texts": list(self.texts),
            "tokens": self.tokens,
            "passed": self.passed,
            "formats": [each.to_json() for each in self.formats],
        }
