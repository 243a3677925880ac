"""Byte-level BPE from GGUF files against transformers, for every name of a cut that is read."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerBase, Qwen2Tokenizer

from kvtide_worker.text import byte_level_bpe
from kvtide_worker.text.tokenizer import Tokenizer
from tests.worker.text.byte_level_files import PIECES, Vocabulary, trained, write
from tests.worker.text.texts import TEXTS

# smollm's cut is looked at with its own vocabulary, in test_against_transformers; transformers leaves it out here.
PRE_TOKENIZERS = [name for name in byte_level_bpe.PRE_TOKENIZERS if name != "smollm"]
ANY_TEXT = st.text(max_size=40) | st.lists(st.sampled_from(PIECES), max_size=20).map("".join)


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return trained()


@pytest.fixture(scope="module")
def folder(vocabulary: Vocabulary, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file for each name."""
    folder = tmp_path_factory.mktemp("cuts")
    for name in byte_level_bpe.PRE_TOKENIZERS:
        write(folder / f"{name}.gguf", vocabulary, name)
    return folder


@pytest.fixture(scope="module", params=PRE_TOKENIZERS)
def both(request: pytest.FixtureRequest, folder: Path, vocabulary: Vocabulary) -> tuple[Tokenizer, object]:
    """Ours, and transformers' reading of the same file; of Qwen, the model's own class with the same vocabulary, as
    its reading of the file does not compose characters."""
    ours = Tokenizer.load(folder / f"{request.param}.gguf")
    if request.param == "qwen2":
        ids = {token: token_id for token_id, token in enumerate(vocabulary.tokens)}
        special = dict.fromkeys(("unk_token", "eos_token", "pad_token"), "<|endoftext|>")
        more = {"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]}
        return ours, Qwen2Tokenizer(vocab=ids, merges=vocabulary.merges, **special, **more)
    return ours, AutoTokenizer.from_pretrained(str(folder), gguf_file=f"{request.param}.gguf")


@pytest.mark.parametrize("text", TEXTS)
def test_encodes_and_decodes_as_transformers(both: tuple[Tokenizer, PreTrainedTokenizerBase], text: str) -> None:
    ours, reference = both
    ids = ours.encode(text, add_special_tokens=False)
    assert ids == reference.encode(text, add_special_tokens=False)
    assert ours.decode(ids) == reference.decode(ids, skip_special_tokens=True)


@settings(max_examples=300, deadline=None)
@given(text=ANY_TEXT)
def test_any_text_encodes_as_transformers(both: tuple[Tokenizer, PreTrainedTokenizerBase], text: str) -> None:
    ours, reference = both
    assert ours.encode(text, add_special_tokens=False) == reference.encode(text, add_special_tokens=False)


def test_no_two_cuts_are_one(folder: Path) -> None:
    """But Llama 3's and dbrx's, which differ in what is a token as a whole: else the tests above might see nothing."""
    text = "".join(PIECES) + "aB12345 Bé'RE a//\n 1½"
    ids = {
        name: tuple(Tokenizer.load(folder / f"{name}.gguf").encode(text, add_special_tokens=False))
        for name in byte_level_bpe.PRE_TOKENIZERS
    }
    assert ids["llama-bpe"] == ids["dbrx"]
    assert len(set(ids.values())) == len(ids) - 1


def test_a_word_that_is_a_token_is_one_though_no_merge_makes_it(vocabulary: Vocabulary, tmp_path: Path) -> None:
    """Llama 3's vocabulary has such ones (ignore_merges in its tokenizer.json)."""
    more = Vocabulary([*vocabulary.tokens, "zzzz"], vocabulary.merges)
    ids = {
        pre: Tokenizer.load(write(tmp_path / f"{pre}.gguf", more, pre)).encode("zzzz", add_special_tokens=False)
        for pre in ("llama-bpe", "dbrx")
    }
    assert ids["llama-bpe"] == [len(vocabulary.tokens)]
    assert len(ids["dbrx"]) > 1


@pytest.mark.parametrize(
    ("pre", "add_bos", "begins_with_bos"),
    [
        ("llama-bpe", None, True),  # llama.cpp knows it by the name
        ("tekken", None, True),
        ("llama-bpe", False, False),
        ("qwen2", None, False),
        ("gpt-2", True, True),
    ],
)
def test_bos(vocabulary: Vocabulary, tmp_path: Path, pre: str, add_bos: bool | None, begins_with_bos: bool) -> None:
    ours = Tokenizer.load(write(tmp_path / "model.gguf", vocabulary, pre, add_bos=add_bos))
    plain = ours.encode("a B", add_special_tokens=False)
    assert ours.encode("a B", add_special_tokens=True) == ([0, *plain] if begins_with_bos else plain)
    assert ours.eos_token_ids == (2,)
