"""Formats that read the same tokens in lockstep with BF16: no logits are kept beyond their step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import torch

from kvtide_sizing.formats import LayerFormat, Precision
from kvtide_worker.quality.attention import Recording
from kvtide_worker.quality.reader import Reader
from kvtide_worker.quality.scoring import ExactStep
from kvtide_worker.quality.statistics import TokenScores
from kvtide_worker.quality.subject import Subject
from kvtide_worker.quality.windows import Window

if TYPE_CHECKING:  # they have a tokenizer, which is of no use to an engine that checks its formats
    from kvtide_worker.quality.conversations import Conversation
    from kvtide_worker.quality.measured_model import MeasuredModel

# Sequences that are read together, and their tokens: each format has a pool for as many.
BATCH, BATCH_TOKENS = 32, 16_384

_Item = TypeVar("_Item")

Formats = Mapping[str, Sequence[LayerFormat]]

# Told after each forward pass, but for those of prefills.
Tick = Callable[[], None]


def text_passes(formats: Formats, windows: Sequence[Window]) -> int:
    """How many forward passes `read_text` takes."""
    return (len(formats) + 1) * sum(max(window.scored for window in batch) for batch in _batches_of(windows))


def read_text(
    measured: Subject, formats: Formats, windows: Sequence[Window], tick: Tick, *, exact_of: Subject | None = None
) -> dict[str, TokenScores]:
    """What BF16 and each of the named formats make of all windows, BF16 first. Raises ValueError as `Reader.open`.

    exact_of: the model that BF16 is of, where its weights are others than the formats'
    """
    scores = {name: TokenScores() for name in (Precision.BF16.value, *formats)}
    for batch in _batches_of(windows):
        readers = _open(measured, formats, [len(window.tokens) for window in batch], exact_of)
        _prefill(list(readers.values()), [window.tokens[: window.prefilled] for window in batch])
        for step in range(max(window.scored for window in batch)):
            pairs = [window.pair(step) for window in batch]
            targets = torch.tensor([pair[1] for pair in pairs if pair], device=measured.device)
            exact = None
            for name, reader in readers.items():
                logits = reader.read([pair[:1] for pair in pairs])
                exact = exact or ExactStep(logits)
                exact.score(logits, targets, scores[name])
                tick()
    return scores


def answer_passes(formats: Formats, conversations: Sequence[Conversation], tokens: int) -> int:
    """How many forward passes `follow_answers` takes at most."""
    return (len(formats) + 1) * sum(tokens * max(len(one.turns) for one in batch) for batch in _batches(conversations))


def follow_answers(
    measured: MeasuredModel,
    formats: Formats,
    conversations: Sequence[Conversation],
    tokens: int,
    tick: Tick,
    *,
    exact_of: Subject | None = None,
) -> dict[str, list[list[bool]]]:
    """BF16 answers greedily, up to so many tokens a turn; of each answer, whether a format chooses each of them too.

    Formats read BF16's answers whatever they would have chosen, and each keeps all earlier turns in its own way. Up to
    the first other choice that is what they would have answered by themselves. exact_of: as of `read_text`. Raises
    ValueError as `Reader.open`.
    """
    answers: dict[str, list[list[bool]]] = {name: [] for name in formats}
    for batch in _batches(conversations):
        capacities = [sum(len(turn) + tokens for turn in one.turns) for one in batch]
        readers = _open(measured, formats, capacities, exact_of)
        unread: list[Sequence[int]] = [()] * len(batch)
        for turn in range(max(len(one.turns) for one in batch)):
            asked = [
                (*rest, *one.turns[turn]) if turn < len(one.turns) else ()
                for rest, one in zip(unread, batch, strict=True)
            ]
            equal, unread = _answer(readers, asked, tokens, measured.tokenizer.eos_token_ids, tick)
            for name in formats:
                answers[name] += equal[name]
    return answers


def _answer(
    readers: Mapping[str, Reader], asked: Sequence[Sequence[int]], tokens: int, ends: Sequence[int], tick: Tick
) -> tuple[dict[str, list[list[bool]]], list[Sequence[int]]]:
    """The first reader's answers to all that were asked something: by reader and sequence, which choices are the same.

    Also what the readers have not read of each: its last token, unless that ended it.
    """
    exact, *others = readers
    equal: dict[str, list[list[bool]]] = {name: [[] for _ in asked] for name in others}
    new = list(asked)
    for _ in range(tokens):
        going = [index for index, unread in enumerate(new) if unread]
        if not going:
            break
        chosen: dict[str, list[int]] = {}
        for name, reader in readers.items():
            chosen[name] = reader.read(new).argmax(-1).tolist()
            tick()
        for name in others:
            for index, own, theirs in zip(going, chosen[name], chosen[exact], strict=True):
                equal[name][index].append(own == theirs)
        new = [()] * len(new)
        for index, choice in zip(going, chosen[exact], strict=True):
            new[index] = () if choice in ends else (choice,)
    return equal, new


def _open(
    measured: Subject, formats: Formats, capacities: Sequence[int], exact_of: Subject | None
) -> dict[str, Reader]:
    """BF16's first."""
    exact = Reader.open(exact_of or measured, measured.formats(Precision.BF16), capacities)
    others = {name: Reader.open(measured, stored, capacities) for name, stored in formats.items()}
    return {Precision.BF16.value: exact, **others}


def _prefill(readers: Sequence[Reader], tokens: Sequence[Sequence[int]]) -> None:
    """The first reader of each model reads, the others store what it did."""
    recordings: dict[int, Recording] = {}
    for reader in readers:
        known = recordings.setdefault(id(reader.model), {})
        if known:
            reader.replay(tokens, known)
        else:
            reader.read(tokens, record=known)


def _batches_of(windows: Sequence[Window]) -> list[Sequence[Window]]:
    return _batches(windows, BATCH_TOKENS // max(len(window.tokens) for window in windows))


def _batches(items: Sequence[_Item], most: int = BATCH) -> list[Sequence[_Item]]:
    size = max(1, min(BATCH, most))
    return [items[start : start + size] for start in range(0, len(items), size)]
