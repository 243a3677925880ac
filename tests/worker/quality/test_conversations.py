"""What stands before each answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from devcluster.model import smollm2_gguf
from kvtide_worker.quality.conversations import QUESTIONS, conversations
from kvtide_worker.text.tokenizer import Tokenizer
from tests.worker.quality.tiny_measured import save_model


@pytest.fixture(scope="module")
def smollm2() -> Tokenizer:
    return Tokenizer.load(smollm2_gguf())


def text(tokenizer: Tokenizer, turn: tuple[int, ...]) -> str:
    return str(tokenizer.backend.decode(list(turn), skip_special_tokens=False))


def test_turns_are_pieces_of_the_models_own_template(smollm2: Tokenizer) -> None:
    first, second, third = conversations(smollm2)[0].turns
    # The template of SmolLM2 begins with a system message of its own.
    assert text(smollm2, first).startswith("<|im_start|>system\n")
    assert text(smollm2, first).endswith(f"<|im_start|>user\n{QUESTIONS[0][0]}<|im_end|>\n<|im_start|>assistant\n")
    for turn, question in zip((second, third), QUESTIONS[0][1:], strict=True):
        wanted = f"<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
        assert text(smollm2, turn) == wanted


@pytest.mark.parametrize(
    "template",
    [
        None,
        "{{ raise_exception('one turn only') }}",
        # Leaves earlier answers out.
        "{% for message in messages if message.role == 'user' %}{{ message.content }}{% endfor %}",
    ],
)
def test_without_a_template_for_turns_questions_are_plain(smollm2: Tokenizer, template: str | None) -> None:
    turns = conversations(replace(smollm2, chat_template=template))[1].turns
    assert text(smollm2, turns[0]) == f"Question: {QUESTIONS[1][0]}\nAnswer:"
    assert text(smollm2, turns[2]) == f"\n\nQuestion: {QUESTIONS[1][2]}\nAnswer:"


def test_every_conversation_has_several_turns(tmp_path: Path) -> None:
    save_model(tmp_path)
    asked = conversations(Tokenizer.load(tmp_path))
    assert len(asked) == len(QUESTIONS)
    assert all(len(one.turns) == 3 and all(one.turns) for one in asked)
