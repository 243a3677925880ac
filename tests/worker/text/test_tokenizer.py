"""The tokenizer of real weights: what it refuses, and that its tokens come out as text again."""

from pathlib import Path

import gguf
import pytest

from kvtide_sizing.models.served import SERVED_TOKENIZERS
from kvtide_worker.text import byte_level_bpe, scored_bpe
from kvtide_worker.text.chat_template import ChatTemplate, ChatTemplateError
from kvtide_worker.text.detokenizer import Detokenizer
from kvtide_worker.text.tokenizer import Tokenizer, UnsupportedTokenizerError
from tests.worker.text.texts import TEXTS


def test_spaces_before_a_digit(ours: Tokenizer) -> None:
    """llama.cpp's rule for "smollm": the digit is cut out before spaces are looked at."""
    assert ours.tokens(ours.encode("a  12", add_special_tokens=False)) == ["a", "ĠĠ", "1", "2"]


@pytest.mark.parametrize("text", TEXTS)
def test_a_detokenizer_over_real_tokens_gives_the_text(ours: Tokenizer, text: str) -> None:
    prompt = ours.encode("Say it: ", add_special_tokens=False)
    ids = ours.encode(text, add_special_tokens=False)
    detokenizer = Detokenizer(ours.decode, prompt, ours.special_ids)
    pieces = [detokenizer.add([token]) for token in ids]
    assert "".join([*pieces, detokenizer.finish()]) == ours.decode(ids)
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% if %}", "broken"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages.__class__.__mro__ }}", "refused"),
        ("{{ messages.append(1) }}", "refused"),
    ],
)
def test_a_template_that_breaks_refuses_or_reaches_out(source: str, message: str) -> None:
    with pytest.raises(ChatTemplateError, match=message):
        ChatTemplate(source, {}).render([{"role": "user", "content": "Hi"}])


@pytest.mark.parametrize(("kind", "pre", "named"), [("bert", "default", "'bert'"), ("gpt2", "kimi-k2", "'kimi-k2'")])
def test_an_unknown_kind_is_refused_by_name(tmp_path: Path, kind: str, pre: str, named: str) -> None:
    file = tmp_path / "other.gguf"
    writer = gguf.GGUFWriter(str(file), "llama")
    writer.add_tokenizer_model(kind)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(["a", "b"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedTokenizerError, match=named):
        Tokenizer.load(file)


@pytest.mark.parametrize("name", ["nowhere", "nowhere.gguf"])
def test_a_missing_tokenizer_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(FileNotFoundError, match=name):
        Tokenizer.load(tmp_path / name)


def test_the_planner_admits_the_gguf_tokenizers_that_are_read_here() -> None:
    byte_level = {("gpt2", name) for name in byte_level_bpe.PRE_TOKENIZERS}
    assert set(SERVED_TOKENIZERS) == byte_level | {("llama", name) for name in scored_bpe.PRE_TOKENIZERS}
