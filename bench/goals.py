"""Goals of a benchmark, and whether a measured ratio meets one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Goal:
    """Output tokens a second of ours, at least so many times those of the other, at so many requests at once."""

    ours: str
    against: str
    concurrency: int
    times: float

    def is_about(self, ratio: Mapping[str, Any]) -> bool:
        """Whether a measured ratio is this one."""
        return (self.ours, self.against, self.concurrency) == (ratio["peer"], ratio["against"], ratio["concurrency"])


def judged(met: bool) -> str:
    """The word in a table."""
    return "[green]met[/]" if met else "[red]missed[/]"
