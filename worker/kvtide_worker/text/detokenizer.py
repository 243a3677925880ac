"""Token ids to text, one step at a time, without ever cutting a character."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

# An unfinished UTF-8 character has at most three bytes, which decoders show as at most three U+FFFD.
_MAX_UNFINISHED = 3

# Enough tokens for any context that a decoder looks back to: bytes of one character, a space before a word.
_CONTEXT_TOKENS = 16


class Detokenizer:
    """The text of a growing sequence; what the pieces say together is what decoding it at once says.

    Only a window at the end is decoded again at every step, so that a long answer costs no more per token:

        … already given │ context, decoded again │ new tokens
                        └──────── window ────────────────────┘
                                     text given so far ┘ └ next piece, less an unfinished character

    decode:     token ids to text, special tokens left out, bytes that are not (yet) UTF-8 as U+FFFD
    skip_ids:   the special tokens: they carry no text, and would push real context out of the window
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        prompt_token_ids: Sequence[int] = (),
        skip_ids: frozenset[int] = frozenset(),
    ) -> None:
        self._decode = decode
        self._skip_ids = skip_ids
        self._window = [token for token in prompt_token_ids if token not in skip_ids][-_CONTEXT_TOKENS:]
        text = decode(self._window)
        # A prompt may end within a character: the first piece then gives the finished one, never the prompt's half.
        self._prompts_unfinished = _unfinished(text)
        self._given = len(text) - self._prompts_unfinished

    def add(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens completed; empty while a character is unfinished."""
        self._window.extend(token for token in token_ids if token not in self._skip_ids)
        text = self._decode(self._window)
        held = _unfinished(text)
        piece = self._take(text, len(text) - held)
        if len(self._window) > 2 * _CONTEXT_TOKENS:
            del self._window[:-_CONTEXT_TOKENS]
            self._given = len(self._decode(self._window)) - held
        return piece

    def finish(self) -> str:
        """What was held back: bytes that no later token will complete."""
        text = self._decode(self._window)
        return self._take(text, len(text))

    def _take(self, text: str, end: int) -> str:
        piece = text[self._given : end]
        self._given = max(self._given, end)
        if not piece or not self._prompts_unfinished:
            return piece
        unfinished, self._prompts_unfinished = self._prompts_unfinished, 0
        return piece[min(unfinished, len(piece) - len(piece.lstrip(_REPLACEMENT))) :]


def _unfinished(text: str) -> int:
    """How many characters at the end may still become another one."""
    tail = text[-_MAX_UNFINISHED:]
    return len(tail) - len(tail.rstrip(_REPLACEMENT))
