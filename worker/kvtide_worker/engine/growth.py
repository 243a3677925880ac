"""Blocks that running requests will take before others give theirs back: what an admission must leave them."""

from __future__ import annotations

from collections.abc import Iterable

from kvtide_sizing.memory.kv import KvLayout
from kvtide_worker.engine.request import Request

# How many times as long as it usually takes until the next request ends. With few, those that run are short of blocks
# where an end comes late, and preempt; with many, blocks lie free until it comes.
_PATIENCE = 3

# Of the last so many requests that ended, newer ones counting more.
_REMEMBERED = 16


class OutputLength:
    """How many tokens requests have when they end, by the last ones; nothing is known at first."""

    def __init__(self) -> None:
        self._mean: float | None = None

    def ended(self, tokens: int) -> None:
        """One more that ran has ended, for whatever reason."""
        self._mean = tokens if self._mean is None else self._mean + (tokens - self._mean) / _REMEMBERED

    def steps_to_an_end(self, running: int, most: int) -> int:
        """Within how many steps one of so many is taken to end; `most` where that is less, or nothing is known."""
        if self._mean is None or not running:
            return most
        return max(1, min(most, round(_PATIENCE * self._mean / running)))


def growth(request: Request, layout: KvLayout, steps: int) -> int:
    """Blocks that a running request lacks for so many more tokens, or for all but its last one, which nobody reads."""
    soon = min(request.num_tokens + steps, request.most_tokens - 1)
    return max(0, layout.sequence_blocks(soon) - request.blocks.num_blocks)


def shortage(running: Iterable[Request], layout: KvLayout, steps: int) -> int:
    """The most blocks that running requests lack at once within so many steps, if each goes on for as long as it may.

    Who ends gives blocks back, but for those of a prefix that it found and may share:

        steps from now    1    2    3    4    5
        grow             +1   +1        +1   +1        at once: 2, after the second step
        end                        -3
    """
    changes: list[tuple[int, int]] = []
    for request in running:
        if grown := growth(request, layout, steps):
            changes.append((layout.block_size - (request.num_tokens - 1) % layout.block_size, grown))
        if (left := request.expected_output_tokens) < steps:
            found = (request.cached_tokens or 0) // layout.block_size * len(layout.tables)
            changes.append((left, min(0, found - request.blocks.num_blocks)))
    lacking = most = 0
    for _, change in sorted(changes):
        lacking += change
        most = max(most, lacking)
    return most
