"""Whatever the cuts, the pieces together are the text, and no piece holds half a character."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtide_worker.text.detokenizer import Detokenizer


def decode_bytes(token_ids: Sequence[int]) -> str:
    """A vocabulary of the 256 bytes: the hardest case for cuts, and Python's own UTF-8 decoder as the reference."""
    return bytes(token_ids).decode("utf-8", errors="replace")


def decode_byte_fallback(token_ids: Sequence[int]) -> str:
    """As SentencePiece models decode (`ByteFallback` in tokenizers): one U+FFFD for every byte of a broken run."""
    try:
        return bytes(token_ids).decode("utf-8")
    except UnicodeDecodeError:
        return "\N{REPLACEMENT CHARACTER}" * len(token_ids)


def pieces(detokenizer: Detokenizer, token_ids: Sequence[int], steps: Sequence[int] = ()) -> list[str]:
    """Feed the ids in steps of the given sizes, then one by one."""
    given_out, at, sizes = [], 0, iter(steps)
    while at < len(token_ids):
        size = next(sizes, 1)
        given_out.append(detokenizer.add(token_ids[at : at + size]))
        at += size
    return [*given_out, detokenizer.finish()]


@given(text=st.text(), steps=st.lists(st.integers(1, 9)))
def test_pieces_join_to_the_text(text: str, steps: list[int]) -> None:
    got = pieces(Detokenizer(decode_bytes), text.encode(), steps)
    assert "".join(got) == text


@given(text=st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\N{REPLACEMENT CHARACTER}")))
def test_no_piece_holds_half_a_character(text: str) -> None:
    got = pieces(Detokenizer(decode_bytes), text.encode())
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in got)


@given(data=st.binary(max_size=200), steps=st.lists(st.integers(1, 9)))
def test_bytes_that_are_no_text_come_out_as_decoding_at_once_says(data: bytes, steps: list[int]) -> None:
    assert "".join(pieces(Detokenizer(decode_bytes), data, steps)) == decode_bytes(data)


@given(prompt=st.text(), answer=st.text())
def test_nothing_of_the_prompt_comes_out(prompt: str, answer: str) -> None:
    got = pieces(Detokenizer(decode_bytes, prompt.encode()), answer.encode())
    assert "".join(got) == answer


@pytest.mark.parametrize(
    ("decode", "prompt", "answer", "expected"),
    [
        (decode_bytes, "a你".encode()[:-1], "你好".encode()[2:], "你好"),  # the answer finishes the character
        (decode_byte_fallback, "你".encode()[:-1], "你".encode()[2:], "你"),
        (decode_bytes, "a你".encode()[:-1], b"xy", "xy"),  # it does not: the prompt's half stays the prompt's
        (decode_bytes, b"a", b"", ""),
    ],
)
def test_a_prompt_that_ends_within_a_character(decode, prompt: bytes, answer: bytes, expected: str) -> None:
    assert "".join(pieces(Detokenizer(decode, prompt), answer)) == expected


def test_broken_bytes_do_not_stall_the_stream() -> None:
    detokenizer = Detokenizer(decode_bytes)
    given_out = [detokenizer.add([0xFF]) for _ in range(100)]
    assert len("".join(given_out)) >= 97  # at most three characters may wait


def test_special_tokens_have_no_text_and_take_no_context() -> None:
    special = 256
    detokenizer = Detokenizer(lambda ids: decode_bytes([i for i in ids if i != special]), skip_ids=frozenset({special}))
    sequence = [*"é".encode()[:1], *[special] * 50, *"é".encode()[1:]]
    assert "".join(pieces(detokenizer, sequence)) == "é"
