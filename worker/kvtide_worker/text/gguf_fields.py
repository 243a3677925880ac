"""The key-value part of a GGUF file's header."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import tokenizers

from kvtide_worker.text.vocabulary import UnsupportedTokenizerError

_UINT32, _UINT64 = struct.Struct("<I"), struct.Struct("<Q")


def _never(_: str) -> bool:
    return False


class GgufFields:
    """What a file says about its tokenizer; the file is mapped, so its tensors stay on the disk."""

    def __init__(self, file: Path) -> None:
        """Raises UnsupportedTokenizerError where the file cannot be read."""
        try:
            self._fields = _Reader(file).fields
        except ValueError as error:
            raise UnsupportedTokenizerError(f"{file} cannot be read: {error}") from error
        self.file = file

    def get(self, key: str) -> Any:
        """The value under a key, a list where it has several, None where there is none."""
        field = self._fields.get(key)
        if field is None:
            return None
        is_array = field.types[0] == gguf.GGUFValueType.ARRAY
        return field.parts[field.data[0]] if is_array else field.contents()

    def token(self, key: str) -> str | None:
        """The text of the token whose id is under a key, None where there is none."""
        token_id = self.get(key)
        return None if token_id is None else str(self.get(gguf.Keys.Tokenizer.LIST)[token_id])

    def added_tokens(
        self, kind: gguf.TokenType, *, normalized: bool = False, takes_space: Callable[[str], bool] = _never
    ) -> list[tokenizers.AddedToken]:
        """The tokens of a kind that are found in a text before it is cut into others; only user-defined ones are text.

        normalized:   they are looked for in the normalised text
        takes_space:  of which of them the white space that follows is a part
        """
        tokens: list[str] = self.get(gguf.Keys.Tokenizer.LIST)
        kinds: list[int] = self.get(gguf.Keys.Tokenizer.TOKEN_TYPE) or []
        special = kind is not gguf.TokenType.USER_DEFINED
        return [
            tokenizers.AddedToken(token, normalized=normalized, special=special, rstrip=takes_space(token))
            for token, of_kind in zip(tokens, kinds, strict=False)
            if of_kind == kind
        ]


class _Reader(gguf.GGUFReader):
    """The package's reader, with an array as a plain list.

    The package makes several numpy arrays of each item: for a vocabulary of 262144 tokens 19 s and 900 MB.
    """

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], list[int], list[Any]]:
        if raw_type != gguf.GGUFValueType.ARRAY:
            parts: tuple[int, list[Any], list[int], list[Any]] = super()._get_field_parts(orig_offs, raw_type)
            return parts
        data = self.data.data
        (kind,) = _UINT32.unpack_from(data, orig_offs)
        (count,) = _UINT64.unpack_from(data, orig_offs + _UINT32.size)
        at = orig_offs + _UINT32.size + _UINT64.size
        items: list[Any] = []
        if kind == gguf.GGUFValueType.STRING:
            for _ in range(count):
                (length,) = _UINT64.unpack_from(data, at)
                at += _UINT64.size
                items.append(str(data[at : at + length], encoding="utf-8"))
                at += length
        else:
            numbers = np.frombuffer(data, dtype=self.gguf_scalar_to_np[kind], count=count, offset=at)
            items, at = numbers.tolist(), at + numbers.nbytes
        return at - orig_offs, [items], [0], [gguf.GGUFValueType.ARRAY, kind]
