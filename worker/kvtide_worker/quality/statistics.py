"""From what was seen of each token to the numbers of a row. It never sees a tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, median, stdev


@dataclass
class TokenScores:
    """What one format made of a text's tokens, in the order in which they were read.

    losses:       of each, the negative logarithm of its probability
    divergences:  of each, the KL divergence of the format's prediction from BF16's
    agreed:       of each, whether the format's likeliest token is BF16's
    """

    losses: list[float] = field(default_factory=list)
    divergences: list[float] = field(default_factory=list)
    agreed: list[bool] = field(default_factory=list)

    def add(self, losses: Sequence[float], divergences: Sequence[float], agreed: Sequence[bool]) -> None:
        """Those of the tokens that come next."""
        self.losses += losses
        self.divergences += divergences
        self.agreed += agreed


@dataclass(frozen=True)
class Difference:
    """How much worse one perplexity is than another, in percent, and the standard error of that."""

    percent: float
    error_percent: float


@dataclass(frozen=True)
class TextRow:
    """A format on a text: divergence in nats, as mean of its tokens; agreed_percent of likeliest tokens."""

    tokens: int
    perplexity: float
    worse: Difference
    divergence: float
    agreed_percent: float


@dataclass(frozen=True)
class AnswerRow:
    """A format along BF16's greedy answers.

    agreed_percent:    of all choices, how many are BF16's
    first_difference:  tokens before the first other choice, or all where there is none, as median of the answers
    answers, same:     how many there are, and how many of them have no other choice
    """

    tokens: int
    agreed_percent: float
    first_difference: float
    answers: int
    same: int


def difference(own: TokenScores, other: TokenScores) -> Difference:
    """How much worse own perplexity is: 100 · (exp(mean of the losses' differences) - 1), of the same tokens.

    The error is that of a mean of paired differences, as if tokens were independent. Raises ValueError where the two
    are not of as many tokens, or of fewer than two.
    """
    if len(own.losses) != len(other.losses) or len(own.losses) < 2:
        raise ValueError(
            f"{len(own.losses)} and {len(other.losses)} tokens: two at least are needed, and as many of both"
        )
    more = [mine - theirs for mine, theirs in zip(own.losses, other.losses, strict=True)]
    mean = fmean(more)
    return Difference(100 * math.expm1(mean), 100 * math.exp(mean) * stdev(more) / math.sqrt(len(more)))


def text_row(own: TokenScores, exact: TokenScores) -> TextRow:
    """The row of a format beside BF16. Raises ValueError as `difference`."""
    return TextRow(
        tokens=len(own.losses),
        perplexity=math.exp(fmean(own.losses)),
        worse=difference(own, exact),
        divergence=fmean(own.divergences),
        agreed_percent=100 * fmean(own.agreed),
    )


def answer_row(answers: Sequence[Sequence[bool]]) -> AnswerRow:
    """The row of a format from whether each choice of each answer is BF16's. Raises ValueError without any choice."""
    answers = [answer for answer in answers if answer]
    if not answers:
        raise ValueError("there is no answer to compare: each ended before its first token")
    choices = [choice for answer in answers for choice in answer]
    firsts = [answer.index(False) if not all(answer) else len(answer) for answer in map(list, answers)]
    return AnswerRow(
        tokens=len(choices),
        agreed_percent=100 * fmean(choices),
        first_difference=median(firsts),
        answers=len(answers),
        same=sum(map(all, answers)),
    )
