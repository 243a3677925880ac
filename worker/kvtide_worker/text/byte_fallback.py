"""Text of SentencePiece's tokens, some of which are single bytes.

`tokenizers` decodes a run of byte tokens as a whole: while its last character is unfinished, all of it is U+FFFD. A
stream of a script that a vocabulary has only in bytes, as Llama 2 has most, would come out as such.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import tokenizers

_SPACE = "▁"
_BYTE = re.compile("<0x([0-9A-F]{2})>")
_MARKED_SPACES = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
_STEPS = [_MARKED_SPACES, {"type": "ByteFallback"}, {"type": "Fuse"}]
_FIRST_SPACE = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


class ByteFallback:
    """Decodes as the tokenizer's own decoder, but for bytes that are no UTF-8: each broken character is U+FFFD.

    drop_first_space: the one that was put before every text
    """

    def __init__(self, backend: tokenizers.Tokenizer, special_ids: frozenset[int], *, drop_first_space: bool) -> None:
        self._backend = backend
        self._special_ids = special_ids
        self._drop_first_space = drop_first_space
        self._bytes_of: dict[int, bytes] = {}

    @classmethod
    def of(cls, backend: tokenizers.Tokenizer, special_ids: frozenset[int]) -> ByteFallback | None:
        """The decoder where the tokenizer's own is one of these, as of Llama 2, Mistral, Phi 3 and Gemma; else None."""
        # What a decoder is made of is only in its JSON.
        decoder: dict[str, Any] = (json.loads(backend.decoder.__getstate__()) if backend.decoder else None) or {}
        steps = decoder.get("decoders")
        if steps not in (_STEPS, [*_STEPS, _FIRST_SPACE]):
            return None
        return cls(backend, special_ids, drop_first_space=steps != _STEPS)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of the ids, special tokens left out."""
        data = b"".join(self._bytes(token_id) for token_id in token_ids if token_id not in self._special_ids)
        text = data.decode("utf-8", errors="replace")
        return text.removeprefix(" ") if self._drop_first_space else text

    def _bytes(self, token_id: int) -> bytes:
        known = self._bytes_of.get(token_id)
        if known is None:
            known = self._bytes_of[token_id] = sentencepiece_bytes(self._backend.id_to_token(token_id) or "")
        return known


def sentencepiece_bytes(token: str) -> bytes:
    """What a token of SentencePiece's stands for: the byte that it names, or its text with spaces for their marks."""
    byte = _BYTE.fullmatch(token)
    return bytes.fromhex(byte[1]) if byte else token.replace(_SPACE, " ").encode()
