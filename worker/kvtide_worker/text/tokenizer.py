"""A model's own tokenizer, from a Hugging Face folder or from the metadata of a GGUF file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import tokenizers

from kvtide_worker.text import gguf_vocabulary, hf_folder
from kvtide_worker.text.byte_fallback import ByteFallback
from kvtide_worker.text.token_bytes import token_bytes
from kvtide_worker.text.vocabulary import UnsupportedTokenizerError, Vocabulary


@dataclass(frozen=True, repr=False)
class Tokenizer:
    """Text to token ids and back; safe to call from several threads.

    eos_token_ids:  any of them ends an answer
    special_ids:    what `decode` leaves out
    chat_template:  Jinja source, None where the model has none
    byte_fallback:  decodes in the backend's place, where some tokens are single bytes
    longest_token:  characters; no text has fewer tokens than its characters over this
    """

    backend: tokenizers.Tokenizer
    eos_token_ids: tuple[int, ...]
    chat_template: str | None
    special_tokens: dict[str, str]
    special_ids: frozenset[int] = field(default_factory=frozenset)
    longest_token: int = 1
    byte_fallback: ByteFallback | None = None

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """Read the tokenizer that belongs to a model: a .gguf file, or a folder with tokenizer.json.

        Raises FileNotFoundError where there is none, UnsupportedTokenizerError for a kind that is not known here.
        """
        vocabulary: Vocabulary = gguf_vocabulary.read(path) if path.suffix == ".gguf" else hf_folder.read(path)
        added = vocabulary.backend.get_added_tokens_decoder()
        special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        return cls(
            backend=vocabulary.backend,
            eos_token_ids=vocabulary.eos_token_ids,
            chat_template=vocabulary.chat_template,
            special_tokens=vocabulary.special_tokens,
            special_ids=special_ids,
            longest_token=max(map(len, vocabulary.backend.get_vocab())),
            byte_fallback=ByteFallback.of(vocabulary.backend, special_ids),
        )

    @property
    def size(self) -> int:
        """How many token ids there are: 0 to size - 1."""
        return self.backend.get_vocab_size(with_added_tokens=True)

    @cached_property
    def spelling(self) -> list[bytes]:
        """The bytes of each token id; made at the first call, in up to half a second."""
        return token_bytes(self.backend)

    @property
    def special_texts(self) -> dict[int, str]:
        """What `decode` leaves out, by its id."""
        return {token_id: self.backend.id_to_token(token_id) or "" for token_id in self.special_ids}

    def special_id(self, text: str) -> int | None:
        """The id of a special token; None where the text is none."""
        token_id = self.backend.token_to_id(text)
        return token_id if token_id in self.special_ids else None

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of a text; special tokens that stand in it as text become their ids.

        add_special_tokens: with what the model wants around a text, such as a BOS. A rendered chat template has it.
        """
        return list(self.backend.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of token ids, special tokens left out. Bytes that are not UTF-8 become U+FFFD."""
        if self.byte_fallback is not None:
            return self.byte_fallback.decode(token_ids)
        return str(self.backend.decode(list(token_ids), skip_special_tokens=True))

    def tokens(self, token_ids: Iterable[int]) -> list[str]:
        """The vocabulary's own spelling of each id, for a person who looks."""
        return [self.backend.id_to_token(token_id) or "" for token_id in token_ids]


__all__ = ["Tokenizer", "UnsupportedTokenizerError"]
