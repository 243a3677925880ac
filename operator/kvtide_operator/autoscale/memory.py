"""What the autoscaler remembers of one resource between two passes. Times in seconds since 1970."""

from dataclasses import dataclass

from kvtide_operator.autoscale.capacity import Shown


@dataclass(frozen=True)
class Window:
    """A stretch of time in which fewer replicas would have done without a break, and the highest demand in it."""

    since: float
    peak_tokens: int


@dataclass(frozen=True)
class Peak:
    """The highest demand of late, in tokens for each ready replica: what slow answers are the answer to."""

    tokens: float
    at: float

    def after(self, tokens: float, now: float, window_s: float) -> "Peak":
        """The peak with one more look: the old one counts for as long as latencies are looked at."""
        return self if self.tokens > tokens and now - self.at <= window_s else Peak(tokens, now)


@dataclass(frozen=True)
class Memory:
    """All of it; None where there is nothing to remember."""

    window: Window | None = None
    shown: Shown | None = None
    peak: Peak | None = None
