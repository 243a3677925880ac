"""From loading to the last answer: whether the worker is ready, and whether it still takes requests. Pure.

LOADING ──► SERVING ──► LAME_DUCK ──► REFUSING
            ready       not ready,    new requests get 503,
                        still takes   those inside finish
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Phase(enum.StrEnum):
    """Where a worker stands."""

    LOADING = "loading"
    SERVING = "serving"
    LAME_DUCK = "lame duck"
    REFUSING = "refusing"


@dataclass
class Lifecycle:
    """The worker's phase. Times are a monotonic clock's seconds, given by the caller.

    lame_duck_s:  how long requests are still taken after the worker stopped being ready: endpoints and load
                  balancers need a moment to hear of it
    drain_s:      how long, from the same moment, requests that are inside may take; the lame duck's time counts
    """

    lame_duck_s: float
    drain_s: float
    loaded: bool = False
    refuse_at: float | None = None
    deadline: float | None = None

    def phase(self, now: float) -> Phase:
        """The phase at this time."""
        if self.refuse_at is not None:
            return Phase.LAME_DUCK if self.loaded and now < self.refuse_at else Phase.REFUSING
        return Phase.SERVING if self.loaded else Phase.LOADING

    def accepts(self, now: float) -> bool:
        """Whether a new request is taken."""
        return self.phase(now) in (Phase.SERVING, Phase.LAME_DUCK)

    @property
    def draining(self) -> bool:
        """Whether the end has begun."""
        return self.refuse_at is not None

    def begin_drain(self, now: float, *, announced: bool) -> None:
        """Stop being ready. announced: somebody routes traffic here and needs time to hear of it.

        A second call can only make it sooner.
        """
        refuse_at = now + (min(self.lame_duck_s, self.drain_s) if announced else 0.0)
        deadline = now + self.drain_s
        self.refuse_at = refuse_at if self.refuse_at is None else min(self.refuse_at, refuse_at)
        self.deadline = deadline if self.deadline is None else min(self.deadline, deadline)
