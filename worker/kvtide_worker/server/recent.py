"""Quantiles of the last minute, in counts alone: however many values come, as many numbers are kept."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable

# Two values of one bucket differ by a twentieth at most.
_GROWTH = math.log(1.05)
_LEAST = 1e-5


class RecentValues:
    """Positive values that came within the last window_seconds, by the clock; their quantiles to within 5 %.

    second   41  42  43 … 101        each has a count for each bucket: 1.05^n to 1.05^(n + 1)
    """

    def __init__(self, clock: Callable[[], float], window_seconds: int = 60) -> None:
        self.window_seconds = window_seconds
        self._clock = clock
        self._seconds: deque[tuple[int, Counter[int]]] = deque()

    def add(self, value: float, count: int = 1) -> None:
        """Note a value that came so many times just now."""
        second = int(self._clock())
        if not self._seconds or self._seconds[-1][0] != second:
            self._forget(second)
            self._seconds.append((second, Counter()))
        self._seconds[-1][1][int(math.log(max(value, _LEAST)) // _GROWTH)] += count

    def quantile(self, part: float) -> float | None:
        """The value that so large a part of all is not above; None where none came."""
        self._forget(int(self._clock()))
        counts: Counter[int] = Counter()
        for _, of_second in self._seconds:
            counts.update(of_second)
        rank, seen = math.ceil(part * counts.total()), 0
        for bucket in sorted(counts):
            seen += counts[bucket]
            if seen >= rank:
                return math.exp((bucket + 0.5) * _GROWTH)
        return None

    def _forget(self, now: int) -> None:
        while self._seconds and self._seconds[0][0] <= now - self.window_seconds:
            self._seconds.popleft()
