"""The bytes of tokens: put together, they are what the tokenizer's own decoder says of all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvtide_worker.text.token_bytes import readable
from kvtide_worker.text.tokenizer import Tokenizer

TEXT = "Né 你好 👍🏽 \t x\n  42 <tag> it's – ☃"


@pytest.fixture(scope="module", params=["smollm2", "gemma3"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    from devcluster.model import gemma3_270m_gguf, smollm2_gguf

    path: Path = smollm2_gguf() if request.param == "smollm2" else gemma3_270m_gguf()
    return Tokenizer.load(path)


def test_together_they_are_the_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(TEXT, add_special_tokens=False)
    assert b"".join(tokenizer.spelling[token] for token in ids).decode() == TEXT


def test_each_one_alone_is_what_the_decoder_says_of_it(tokenizer: Tokenizer) -> None:
    """Where it is whole characters. A space at the beginning is the one thing that decoders may leave out."""
    size = tokenizer.size
    assert len(tokenizer.spelling) == size
    for token in range(0, size, 97):
        if token in tokenizer.special_ids:
            continue
        try:
            text = tokenizer.spelling[token].decode()
        except UnicodeDecodeError:
            assert "\N{REPLACEMENT CHARACTER}" in tokenizer.decode([token])
            continue
        assert tokenizer.decode([token]).lstrip(" ") == text.lstrip(" ")


def test_special_tokens_are_their_own_text(tokenizer: Tokenizer) -> None:
    for token in tokenizer.eos_token_ids:
        assert tokenizer.spelling[token].decode() == tokenizer.special_texts[token]


@pytest.mark.parametrize(
    ("token", "text"), [(b" a", " a"), ("é".encode(), "é"), (b"\xf0\x9f", r"\xf0\x9f"), (b" \x91", r"\x20\x91")]
)
def test_a_part_of_a_character_is_written_as_its_bytes(token: bytes, text: str) -> None:
    assert readable(token) == text
