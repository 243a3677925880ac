"""Tokens with scores against SentencePiece itself: a small vocabulary with every kind of token."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sentencepiece import SentencePieceProcessor

from kvtide_worker.text.tokenizer import Tokenizer, UnsupportedTokenizerError
from tests.worker.text.sentencepiece_model import processor

CONTROL = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
# As in Gemma: runs of spaces and line ends are one token, and never part of another. GGUF writes spaces in them.
USER_DEFINED = ["\n", "\n\n", "  ", "   ", "<image>"]
BYTES = [f"<0x{value:02X}>" for value in range(256)]
# By falling score. Some are made in two ways, and some lap over themselves.
NORMAL = ["bc", "▁a", "ab", "abc", "▁abc", "xx", "xxx", "xxxx", "cab", "é", "éa", *"▁abcx"]


def write(
    file: Path,
    *,
    pre: str | None = "default",
    add_space_prefix: bool | None = False,
    add_bos: bool | None = True,
    architecture: str = "gemma3",
    control: Sequence[str] = CONTROL,
    user_defined: Sequence[str] = USER_DEFINED,
    scores: Sequence[float] | None = None,
    **ids: int,
) -> Path:
    """A GGUF file of that vocabulary, without tensors; its header has what transformers wants to see."""
    writer = gguf.GGUFWriter(str(file), architecture)
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(8)
    writer.add_feed_forward_length(8)
    writer.add_head_count(1)
    kinds = {
        gguf.TokenType.CONTROL: control,
        gguf.TokenType.USER_DEFINED: user_defined,
        gguf.TokenType.BYTE: BYTES,
        gguf.TokenType.NORMAL: NORMAL,
    }
    tokens = [(token, kind) for kind, of_kind in kinds.items() for token in of_kind]
    unscored = len(tokens) - len(NORMAL)
    writer.add_tokenizer_model("llama")
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list([token for token, _ in tokens])
    writer.add_token_types([kind for _, kind in tokens])
    writer.add_token_scores(scores or [0.0] * unscored + [-float(rank) for rank in range(len(NORMAL))])
    for name, token_id in {"pad": 0, "eos": 1, "bos": 2, "unk": 3, **ids}.items():
        getattr(writer, f"add_{name}_token_id")(token_id)
    if add_bos is not None:
        writer.add_add_bos_token(add_bos)
    if add_space_prefix is not None:
        writer.add_add_space_prefix(add_space_prefix)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("tokens") / "small.gguf")


@pytest.fixture(scope="module")
def ours(small: Path) -> Tokenizer:
    return Tokenizer.load(small)


@pytest.fixture(scope="module")
def reference(small: Path) -> SentencePieceProcessor:
    return processor(small)


@given(text=st.lists(st.sampled_from([*"abcxé \n▁0👍", "  ", "xxx", "<image>"]), max_size=30).map("".join))
def test_encodes_and_decodes_as_sentencepiece(ours: Tokenizer, reference: SentencePieceProcessor, text: str) -> None:
    ids = ours.encode(text, add_special_tokens=False)
    assert ids == reference.encode(text)
    assert ours.decode(ids) == reference.decode(ids)


@given(ids=st.lists(st.integers(0, 10 + len(BYTES) + len(NORMAL))))
def test_any_tokens_are_text_again(ours: Tokenizer, reference: SentencePieceProcessor, ids: list[int]) -> None:
    """Bytes that are no text differ: SentencePiece has U+FFFD for each of them."""
    text = ours.decode(ids)
    assume("\N{REPLACEMENT CHARACTER}" not in text)
    assert text == reference.decode([token_id for token_id in ids if token_id not in ours.special_ids])


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("abca", ["abc", "a"]),  # of a and bc, as bc has a higher score than ab
        (" abx", ["▁a", "b", "x"]),  # and ▁a one than ab
        ("xxxxx", ["xx", "xxx"]),  # xx twice, then xxx has a higher score than xxxx
        ("é", ["é"]),
        ("ö", ["<0xC3>", "<0xB6>"]),
        ("<bos>a", ["<bos>", "a"]),
    ],
)
def test_rows(ours: Tokenizer, text: str, tokens: list[str]) -> None:
    assert ours.tokens(ours.encode(text, add_special_tokens=False)) == tokens


def test_the_facts_beside_the_tokens(ours: Tokenizer, tmp_path: Path) -> None:
    assert ours.encode("a", add_special_tokens=True) == [2, *ours.encode("a", add_special_tokens=False)]
    assert ours.eos_token_ids == (1, 5)  # <eos>, and <end_of_turn>, whose role the file does not name
    assert ours.special_ids == frozenset(range(len(CONTROL)))
    assert ours.special_tokens == {
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "unk_token": "<unk>",
        "pad_token": "<pad>",
    }
    assert Tokenizer.load(write(tmp_path / "named.gguf", eot=4)).eos_token_ids == (1, 4, 5)


def test_files_from_before_there_were_pre_tokenizers(ours: Tokenizer, tmp_path: Path) -> None:
    older = Tokenizer.load(write(tmp_path / "older.gguf", pre=None))
    assert older.encode("abc  é\n", add_special_tokens=True) == ours.encode("abc  é\n", add_special_tokens=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pre": "llama-bpe"}, "the pre-tokenizer 'llama-bpe' of this GGUF file is not known with tokens"),
        ({"scores": [0.0]}, "tokens, 1 scores and"),
    ],
)
def test_what_is_not_read_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedTokenizerError, match=message):
        Tokenizer.load(write(tmp_path / "other.gguf", **changes))
