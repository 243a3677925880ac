"""Which precision a worker serves, by what was measured of each when it loaded. Pure: it never sees a tensor."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from kvtide_sizing.formats import Precision
from kvtide_sizing.plan.candidates import LOSS_BOUND_PERCENT

# What bfloat16 makes of any difference, however small: on SmolLM2 and Gemma 3 a mean divergence of about 0.0015 nats
# (docs/kernels.md), which says nothing of a format.
NOISE_NATS = 0.0015

# Where one is not good enough, the next one is tried. Mixed is no step of it: nobody asked for its layers.
_BETTER = (Precision.INT4, Precision.K8V4, Precision.INT8, Precision.BF16)
_BETTER_THAN_MIXED = (Precision.MIXED, Precision.INT8, Precision.BF16)


@dataclass(frozen=True)
class QualityCheck:
    """One precision's check at load.

    divergence:  mean KL divergence of its next-token predictions from BF16's, in nats; not finite where logits were not
    limit:       the most that is allowed
    """

    precision: Precision
    divergence: float
    limit: float

    @property
    def passed(self) -> bool:
        """Whether it may be served."""
        return self.divergence <= self.limit  # NaN is not


def limit_nats(precision: Precision, max_loss_percent: float) -> float:
    """The largest divergence that a precision may have, in nats.

    A perplexity is exp(mean loss): p percent more of it are ln(1 + p / 100) nats of mean loss. Where a text is as
    likely as BF16 says, the mean difference of the losses is the divergence (the definition of KL: the expectation of
    log P - log Q over P). Measured, the two agree: INT4's 0.40 % on SmolLM2 is 0.0040 nats, its divergence 0.0047.
    BF16's own noise comes on top.

    max_loss_percent: what may be lost; who names a precision allows what that one may cost (`LOSS_BOUND_PERCENT`)
    """
    return NOISE_NATS + math.log1p(max(max_loss_percent, LOSS_BOUND_PERCENT[precision]) / 100)


def better_than(planned: Precision) -> tuple[Precision, ...]:
    """What is fallen back to from a precision, step by step."""
    ladder = _BETTER_THAN_MIXED if planned is Precision.MIXED else _BETTER
    return ladder[ladder.index(planned) + 1 :]


def precision_to_serve(
    planned: Precision, checks: Mapping[Precision, QualityCheck], fitting: Collection[Precision]
) -> Precision | None:
    """The planned precision, or the next better one whose check did not fail; the caller checks it where nobody has.

    fitting: those whose pool holds one sequence in the planned bytes. BF16 needs no check. None where none is left.
    """
    for precision in (planned, *better_than(planned)):
        known = checks.get(precision)
        if precision in fitting and (precision is Precision.BF16 or known is None or known.passed):
            return precision
    return None


def fallback_sentence(
    planned: Precision, served: Precision | None, checks: Mapping[Precision, QualityCheck], loss_percent: float
) -> str:
    """Why another precision than the planned one is served, or None is."""
    tried = [checks[precision] for precision in (planned, *better_than(planned)) if precision in checks]
    told = ", ".join(
        f"{check.precision} by {_nats(check.divergence)} where {check.limit:.4f} are allowed"
        for check in tried
        if not check.passed
    )
    lost = f"loses too much against BF16: in nats of KL divergence {told} (maxQualityLossPercent {loss_percent:g})"
    if served is None:
        return f"the plan stores KV as {planned}, which {lost}"
    return f"KV is stored as {served} and not as {planned}, as planned, which {lost}"


def _nats(divergence: float) -> str:
    return f"{divergence:.4f}" if math.isfinite(divergence) else "a number that is not finite"
