"""Which tokens of a text are read, and which of them are scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvtide_sizing.errors import SizingError


class TextTooShort(SizingError):
    """A text without enough tokens to be measured on."""

    reason = "TextTooShort"


@dataclass(frozen=True)
class Window:
    """Tokens that are read as one sequence: the first `prefilled` as one chunk, the others one at a time.

    What a token read alone predicts is scored: the first scored token is tokens[prefilled + 1].
    """

    tokens: tuple[int, ...]
    prefilled: int

    @property
    def scored(self) -> int:
        """How many tokens are scored."""
        return len(self.tokens) - self.prefilled - 1

    def pair(self, step: int) -> tuple[int, ...]:
        """The token that is read in that step behind the prefill, and the one that it predicts; empty past the end."""
        return self.tokens[self.prefilled + step : self.prefilled + step + 2] if step < self.scored else ()


def cut(text: Sequence[int], start: Sequence[int], *, size: int, prefilled: int, scored: int) -> list[Window]:
    """The text as windows of so many tokens one after another, each behind the start tokens, until enough are scored.

    The last one is shorter. Raises TextTooShort where no token would be scored.
    """
    body, windows, left = size - len(start), [], scored
    for begin in range(0, len(text), body):
        tokens = (*start, *text[begin : begin + body])[: prefilled + 1 + left]
        window = Window(tokens, prefilled)
        if window.scored < 1:
            break
        windows.append(window)
        left -= window.scored
    if sum(window.scored for window in windows) < 2:
        raise TextTooShort(
            f"the text has {len(text)} tokens, of which the first {prefilled} are read before any is scored: "
            f"{prefilled + 3 - len(start)} are the least, some thousands give a useful error"
        )
    return windows


def spread(text: Sequence[int], start: Sequence[int], *, count: int, size: int, scored: int) -> list[Window]:
    """So many windows of one size from places all over the text, the last tokens of each scored; they may overlap.

    Raises TextTooShort where the text does not fill one.
    """
    body = size - len(start)
    if len(text) < body:
        raise TextTooShort(f"the text has {len(text)} tokens, but windows of {body} are needed: give a longer one")
    begins = [index * (len(text) - body) // max(1, count - 1) for index in range(count)]
    return [Window((*start, *text[begin : begin + body]), size - scored - 1) for begin in begins]
