"""Questions of several turns that want long answers, and the tokens that a model is asked them with."""

from __future__ import annotations

from dataclasses import dataclass

from kvtide_worker.text.chat_template import ChatTemplate, ChatTemplateError
from kvtide_worker.text.tokenizer import Tokenizer

QUESTIONS = (
    (
        "Write a story about a lighthouse keeper who finds a letter in a bottle. Take your time.",
        "Who wrote the letter, and why did it take so long to arrive? Tell it from the writer's side.",
        "Now end the story ten years later.",
    ),
    (
        "Explain step by step how bread rises, to somebody who has never baked.",
        "What can go wrong at each of these steps, and how would I notice?",
        "Write a recipe for a loaf from what you said, with amounts in grams.",
    ),
    (
        "Write a Python function that finds all prime numbers up to n, and explain each line.",
        "How does its running time grow with n? Show it with the numbers 100, 1000 and 10000.",
        "Write tests for the function, with the edge cases that matter.",
    ),
    (
        "Plan a week of walks for a visitor to a hilly town by the sea, one for each day.",
        "It will rain from Tuesday to Thursday. Change the plan and say what you changed.",
        "List everything the visitor should pack, grouped by day.",
    ),
    (
        "Compare a bicycle, a bus and a car for a way to work of eight kilometres.",
        "My knee hurts and I leave at six in the morning. Which one do you advise, and why?",
        "Write a letter to my employer that asks for help with the cost of it.",
    ),
    (
        "Describe the water cycle, from the sea to a kitchen tap and back.",
        "Which parts of it would change in a town that grows from 5,000 to 50,000 people?",
        "Turn what you said into a quiz of eight questions with answers.",
    ),
)


@dataclass(frozen=True)
class Conversation:
    """What stands before each of a model's answers, turns[0] from the beginning, the others behind the last answer."""

    turns: tuple[tuple[int, ...], ...]


def conversations(tokenizer: Tokenizer) -> list[Conversation]:
    """The questions in the model's own chat template, or as plain questions where it has none that takes them."""
    return [
        Conversation(
            tuple(
                # A template writes by itself what a model wants before a text.
                tuple(tokenizer.encode(text, add_special_tokens=not templated and number == 0))
                for number, text in enumerate(texts)
            )
        )
        for questions in QUESTIONS
        for templated, texts in [_texts(tokenizer, questions)]
    ]


def _texts(tokenizer: Tokenizer, questions: tuple[str, ...]) -> tuple[bool, list[str]]:
    """Whether there is a template, and what stands before each answer."""
    plain = [f"Question: {questions[0]}\nAnswer:", *(f"\n\nQuestion: {each}\nAnswer:" for each in questions[1:])]
    if tokenizer.chat_template is None:
        return False, plain
    # One rendering with marks for the answers: its pieces are what lies between them.
    marks = [f"[[answer {number}]]" for number in range(len(questions) - 1)]
    messages = [{"role": "user", "content": questions[0]}]
    for mark, question in zip(marks, questions[1:], strict=True):
        messages += [{"role": "assistant", "content": mark}, {"role": "user", "content": question}]
    try:
        rest = ChatTemplate(tokenizer.chat_template, tokenizer.special_tokens).render(messages)
    except ChatTemplateError:
        return False, plain
    texts = []
    for mark in marks:
        before, found, rest = rest.partition(mark)
        if not found:
            return False, plain
        texts.append(before)
    return True, [*texts, rest]
