"""What the autoscaler remembers of one resource between two passes. Times in seconds since 1970."""

import math
from dataclasses import dataclass

from kvtide_operator.autoscale.capacity import Shown

# The stabilisation window slides in so many steps: what is remembered of each is its highest demand.
STEPS = 10
# An operator that comes back after less than this goes on with the window; after more it has missed too much.
UNSEEN_S = 60.0
# A look this soon after the last one that was noted is not noted: where nothing else is new, nothing is written.
NOTED_S = 20.0


@dataclass(frozen=True)
class Window:
    """A time in which fewer replicas would have done without a break, and the highest demands in it, in tokens.

    seen:  when it was last looked at, to within NOTED_S
    step:  the number of the newest step, counted from 1970 in tenths of the stabilisation window
    peaks: of each step, the oldest first
    """

    began: float
    seen: float
    step: int
    peaks: tuple[int, ...]

    @property
    def peak_tokens(self) -> int:
        """The highest of all."""
        return max(self.peaks)

    def rises(self, demand: int) -> bool:
        """Whether the demand is above most of the window's: nobody goes while it grows."""
        return demand > sum(self.peaks) / len(self.peaks)

    def covers(self, window_s: float, now: float) -> bool:
        """Whether it is long enough to say that fewer replicas would have done all the time."""
        return now - self.began >= window_s


def look(window: Window | None, demand: int, window_s: float, now: float) -> Window:
    """The window with one more look; a new one where nobody has looked for too long, or its length has changed."""
    a_second = STEPS / max(window_s, 1.0)
    step = math.floor(now * a_second)
    if window is None or now - window.seen > UNSEEN_S or not 0 <= step - window.step <= 1 + UNSEEN_S * a_second:
        return Window(now, now, step, (demand,))
    if step == window.step:
        seen = window.seen if now - window.seen < NOTED_S else now
        return Window(window.began, seen, step, (*window.peaks[:-1], max(window.peaks[-1], demand)))
    # Steps in which nobody looked are like the last one before them. As many are kept as the window reaches into.
    unseen = [window.peaks[-1]] * (step - window.step - 1)
    return Window(window.began, now, step, (*window.peaks, *unseen, demand)[-STEPS - 1 :])


@dataclass(frozen=True)
class Peak:
    """The highest demand of late, in tokens for each ready replica: what slow answers are the answer to.

    tokens, since: of the time that goes on; before: of as much time before it
    """

    tokens: float
    since: float
    before: float = 0.0

    @property
    def highest(self) -> float:
        return max(self.tokens, self.before)

    def after(self, tokens: float, now: float, window_s: float) -> "Peak":
        """The peak with one more look; one counts for once to twice the time that latencies are looked at."""
        age_s = now - self.since
        if age_s <= window_s:
            return Peak(max(self.tokens, tokens), self.since, self.before)
        return Peak(tokens, now, self.tokens if age_s <= 2 * window_s else 0.0)


@dataclass(frozen=True)
class Memory:
    """All of it; None where there is nothing to remember."""

    window: Window | None = None
    shown: Shown | None = None
    peak: Peak | None = None
