"""What a model's files say about its tokenizer, whatever their format."""

from __future__ import annotations

from dataclasses import dataclass

import tokenizers


class UnsupportedTokenizerError(ValueError):
    """The model's tokenizer is of a kind that is not known here; the message names it and what is known."""


@dataclass(frozen=True)
class Vocabulary:
    """The tokenizer proper and the few facts beside it.

    special_tokens:  `bos_token`, `eos_token`, … → their text, as chat templates name them
    """

    backend: tokenizers.Tokenizer
    eos_token_ids: tuple[int, ...]
    chat_template: str | None
    special_tokens: dict[str, str]
