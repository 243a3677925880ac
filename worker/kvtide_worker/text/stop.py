"""Stop strings over pieces of text: nothing of one is ever given out, however the pieces are cut."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Passes text on until a stop string appears, and holds back an ending that may become one.

    Of several, the one that is complete first counts: so the answer does not depend on how the text was cut.

    included: whether the text goes to the end of the stop string that ended it
    """

    def __init__(self, stop: Sequence[str], *, included: bool = False) -> None:
        self._stop = tuple(stop)
        self._included = included
        self._held = ""
        self.stopped = False

    def add(self, piece: str) -> str:
        """The text that is safe to give out now; once `stopped`, nothing more."""
        if self.stopped:
            return ""
        text = self._held + piece
        found = [(at + len(stop), at) for stop in self._stop if (at := text.find(stop)) >= 0]
        if found:
            self.stopped = True
            self._held = ""
            end, begin = min(found)
            return text[: end if self._included else begin]
        keep = max((ending_that_begins(text, stop) for stop in self._stop), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """What was held back: the answer ended before it became a stop string."""
        text, self._held = self._held, ""
        return text


def ending_that_begins(text: str, stop: str) -> int:
    """The length of the longest ending of `text` with which `stop` begins, short of all of it."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
