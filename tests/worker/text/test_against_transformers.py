"""The tokenizer and chat template of real weights against transformers, which builds its own from the same files."""

import re
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from kvtide_worker.text.chat_template import ChatTemplate
from kvtide_worker.text.tokenizer import Tokenizer
from tests.worker.text.texts import TEXTS

# transformers takes a quarter of a minute to read a GGUF file.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def reference(smollm2: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(str(smollm2.parent), gguf_file=smollm2.name)


NUMERIC = re.compile(
    "([" + "".join(chr(code) for code in range(0x110000) if unicodedata.category(chr(code))[0] == "N") + "])"
)


def reference_ids(reference: PreTrainedTokenizerBase, text: str) -> list[int]:
    """transformers' ids, with the text cut at every digit first.

    It leaves the pre-tokenizer named in the file ("smollm") out, which shows only in spaces before a digit; llama.cpp
    (LLAMA_VOCAB_PRE_TYPE_SMOLLM: `\\p{N}` first) and the model's tokenizer.json (Digits, individual) both have it.
    """
    parts = NUMERIC.split(text)
    return [token for part in parts if part for token in reference.encode(part, add_special_tokens=False)]


@pytest.mark.parametrize("text", TEXTS)
def test_encodes_and_decodes_as_transformers(ours: Tokenizer, reference, text: str) -> None:
    ids = ours.encode(text, add_special_tokens=True)
    assert ids == reference_ids(reference, text)
    assert ours.decode(ids) == reference.decode(ids, skip_special_tokens=True)


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=60))
def test_any_text_encodes_as_transformers(ours: Tokenizer, reference, text: str) -> None:
    ids = ours.encode(text, add_special_tokens=False)
    assert ours.decode(ids) == reference.decode(ids, skip_special_tokens=True)
    assert ids == reference_ids(reference, text)


def test_the_facts_beside_the_vocabulary(ours: Tokenizer, reference) -> None:
    assert ours.eos_token_ids == (reference.eos_token_id,)
    assert ours.size == len(reference)
    assert ours.special_ids == set(reference.all_special_ids) | set(range(17))  # the file marks 17 control tokens
    assert ours.chat_template == reference.chat_template


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "Hi"}],
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?\n{{ 1 + 1 }}"}],
        [
            {"role": "user", "content": "1"},
            {"role": "assistant", "content": "2"},
            {"role": "user", "content": "é👍"},
        ],
    ],
)
def test_the_chat_template_renders_as_transformers(ours: Tokenizer, reference, messages) -> None:
    assert ours.chat_template is not None
    template = ChatTemplate(ours.chat_template, ours.special_tokens)
    expected = reference.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert template.render(messages) == expected


@pytest.mark.parametrize(
    "source",
    [
        "{{ bos_token }}{% for m in messages %}{{ m | tojson }}\n{% endfor %}",
        "{%- for m in messages -%}\n  {%- if loop.index > 1 %}{% break %}{% endif %}{{ m['content'] }}\n{%- endfor %}",
        "{{ messages | tojson(indent=2) }}",
    ],
)
def test_the_helpers_of_templates_do_as_in_transformers(ours: Tokenizer, reference, source: str) -> None:
    messages = [{"role": "user", "content": "<é & 'x'>"}, {"role": "user", "content": "two"}]
    expected = reference.apply_chat_template(messages, chat_template=source, tokenize=False, add_generation_prompt=True)
    assert ChatTemplate(source, ours.special_tokens).render(messages) == expected


def test_a_folder_gives_the_same_as_the_file(ours: Tokenizer, reference, tmp_path: Path) -> None:
    reference.save_pretrained(tmp_path)
    folder = Tokenizer.load(tmp_path)
    assert (folder.eos_token_ids, folder.special_ids) == (ours.eos_token_ids, ours.special_ids)
    assert folder.chat_template == ours.chat_template
    assert folder.special_tokens == ours.special_tokens
    for text in TEXTS:
        assert folder.encode(text, add_special_tokens=True) == reference.encode(text)


def test_several_ends_come_from_the_generation_config(reference, tmp_path: Path) -> None:
    reference.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [0, 2]}')
    assert Tokenizer.load(tmp_path).eos_token_ids == (0, 2)
