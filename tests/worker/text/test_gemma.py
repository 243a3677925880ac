"""Gemma 3's own tokenizer, from real weights, against SentencePiece; control tokens against transformers."""

import inspect
import re
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sentencepiece import SentencePieceProcessor
from transformers import AutoTokenizer

from devcluster.model import gemma3_270m_gguf
from kvtide_worker.text.detokenizer import Detokenizer
from kvtide_worker.text.tokenizer import Tokenizer
from tests.worker.text.sentencepiece_model import processor
from tests.worker.text.texts import TEXTS

# 262144 tokens are read three times, by transformers in a quarter of a minute.
pytestmark = pytest.mark.slow

MORE_TEXTS = [
    *TEXTS,
    "a" + " " * 40 + "b",  # 31 spaces are a token and 9 are: SentencePiece takes the longest from the left
    "\n" * 50 + "\t" * 33,
    "====---- ::::: .....",
    "▁ is what a space looks like, ▁▁ two",
    "<h1>a</h1><table><tr><td>b</td></tr></table>",
    inspect.getsource(inspect),
]


# SentencePiece itself finds none of these in a text.
CONTROL = re.compile("<(pad|eos|bos|unk|mask|(start|end)_of_turn|unused[0-9]+)>")


@pytest.fixture(scope="module")
def gemma() -> Path:
    """Gemma 3 270M as a GGUF file."""
    return gemma3_270m_gguf()


@pytest.fixture(scope="module")
def ours(gemma: Path) -> Tokenizer:
    return Tokenizer.load(gemma)


@pytest.fixture(scope="module")
def reference(gemma: Path) -> SentencePieceProcessor:
    return processor(gemma)


@pytest.mark.parametrize("text", MORE_TEXTS)
def test_encodes_and_decodes_as_sentencepiece(ours: Tokenizer, reference: SentencePieceProcessor, text: str) -> None:
    ids = ours.encode(text, add_special_tokens=False)
    assert ids == reference.encode(text)
    assert ours.decode(ids) == reference.decode(ids)


@settings(max_examples=2000, deadline=None)
@given(text=st.text(max_size=60) | st.text(st.sampled_from("aeinst  \n\t.=-01"), max_size=60))
def test_any_text_encodes_as_sentencepiece(ours: Tokenizer, reference: SentencePieceProcessor, text: str) -> None:
    assume(not CONTROL.search(text))
    ids = ours.encode(text, add_special_tokens=False)
    assert ids == reference.encode(text)
    assert ours.decode(ids) == reference.decode(ids)


@settings(max_examples=500, deadline=None)
@given(ids=st.lists(st.integers(107, 237) | st.integers(494, 255_999), max_size=20))  # bytes are between these
def test_any_tokens_decode_and_encode_as_sentencepiece(
    ours: Tokenizer, reference: SentencePieceProcessor, ids: list[int]
) -> None:
    text = reference.decode(ids)
    assert ours.decode(ids) == text
    assume(not CONTROL.search(text))
    assert ours.encode(text, add_special_tokens=False) == reference.encode(text)


@pytest.mark.parametrize("text", TEXTS)
def test_a_detokenizer_over_real_tokens_gives_the_text(ours: Tokenizer, text: str) -> None:
    ids = ours.encode(text, add_special_tokens=False)
    detokenizer = Detokenizer(ours.decode, ours.encode("Say it: ", add_special_tokens=True), ours.special_ids)
    pieces = [detokenizer.add([token]) for token in ids]
    assert "".join([*pieces, detokenizer.finish()]) == ours.decode(ids) == text
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


def test_chats_and_the_facts_beside_are_transformers(ours: Tokenizer, gemma: Path) -> None:
    other = AutoTokenizer.from_pretrained(str(gemma.parent), gguf_file=gemma.name)
    chat = "<start_of_turn>user\nHi  there<end_of_turn>\n<start_of_turn>model\n"
    for text in (chat, *TEXTS):
        assert ours.encode(text, add_special_tokens=True) == other.encode(text)
    assert ours.size == len(other) == 262_144
    assert ours.eos_token_ids == (other.eos_token_id, other.convert_tokens_to_ids("<end_of_turn>")) == (1, 106)
    assert set(other.all_special_ids) <= ours.special_ids
    assert ours.chat_template is None  # it is the base model, which has not learnt a format of chats
