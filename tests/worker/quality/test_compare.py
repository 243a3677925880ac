"""Formats in lockstep: the perplexity of BF16 is transformers', and what is made worse is reported as worse."""

from __future__ import annotations

import dataclasses
from itertools import zip_longest
from pathlib import Path
from statistics import fmean

import pytest
import torch
from torch.nn.functional import cross_entropy

from kvtide_sizing.formats import Precision
from kvtide_sizing.memory.kv import KvLayout, kv_layout
from kvtide_sizing.memory.weights import WeightFormat
from kvtide_worker.quality import compare as compare_module
from kvtide_worker.quality import reader as reader_module
from kvtide_worker.quality.compare import answer_passes, follow_answers, read_text, text_passes
from kvtide_worker.quality.conversations import Conversation
from kvtide_worker.quality.measured_model import MeasuredModel
from kvtide_worker.quality.reader import Reader
from kvtide_worker.quality.windows import Window, cut
from tests.worker.quality.tiny_measured import load_model, random_tokens, save_model

INT4 = Precision.INT4.value


def quiet() -> None:
    """Nobody counts passes."""


def windows_of(tokens: int, size: int = 120) -> list[Window]:
    return cut(random_tokens(tokens), [1], size=size, prefilled=48, scored=tokens)


def divergence(measured: MeasuredModel, windows: list[Window]) -> float:
    scores = read_text(measured, {INT4: measured.formats(Precision.INT4)}, windows, quiet)
    return fmean(scores[INT4].divergences)


def test_losses_of_bf16_are_transformers(tmp_path: Path) -> None:
    theirs = save_model(tmp_path)
    windows = windows_of(300)
    found = read_text(load_model(tmp_path), {}, windows, quiet)["BF16"]
    losses = []
    with torch.inference_mode():
        for window in windows:
            tokens = torch.tensor(window.tokens)
            logits = theirs(tokens[None]).logits[0, window.prefilled : -1]
            losses.append(cross_entropy(logits, tokens[window.prefilled + 1 :], reduction="none").tolist())
    # Windows advance together: the first scored token of each, then the second.
    wanted = [loss for step in zip_longest(*losses) for loss in step if loss is not None]
    assert len(found.losses) == len(wanted) == sum(window.scored for window in windows)
    # Keys and values are rounded to 8 bits of mantissa: single losses differ, and their mean hardly.
    assert found.losses == pytest.approx(wanted, abs=0.2)
    assert fmean(found.losses) == pytest.approx(fmean(wanted), rel=5e-3)
    assert found.divergences == [0.0] * len(wanted)


def test_passes_are_counted(tmp_path: Path) -> None:
    save_model(tmp_path)
    measured, ticks = load_model(tmp_path), []
    windows = windows_of(2000, size=60)
    assert len(windows) > 32
    formats = {INT4: measured.formats(Precision.INT4)}
    read_text(measured, formats, windows, lambda: ticks.append(1))
    assert len(ticks) == text_passes(formats, windows)


def test_windows_are_read_together_up_to_so_many_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model(tmp_path)
    measured, windows = load_model(tmp_path), windows_of(400, size=100)
    together = read_text(measured, {}, windows, quiet)["BF16"]
    monkeypatch.setattr(compare_module, "BATCH_TOKENS", 200)
    assert text_passes({}, windows) == 2 * 51
    by_two = read_text(measured, {}, windows, quiet)["BF16"]
    assert sorted(by_two.losses) == pytest.approx(sorted(together.losses), abs=0.1)


def test_keys_with_outliers_are_worse_without_their_basis(tmp_path: Path) -> None:
    save_model(tmp_path, outliers=True)
    measured, windows = load_model(tmp_path), windows_of(400)
    assert divergence(dataclasses.replace(measured, bases={}), windows) > 2 * divergence(measured, windows)


def test_few_bits_are_worse_without_recent_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model(tmp_path)
    measured, windows = load_model(tmp_path), windows_of(400, size=80)
    with_recent = divergence(measured, windows)

    def without_recent(*args: object) -> KvLayout:
        return dataclasses.replace(kv_layout(*args), recent=0)  # type: ignore[arg-type]

    monkeypatch.setattr(reader_module, "kv_layout", without_recent)
    assert divergence(measured, windows) > 1.5 * with_recent


def test_formats_are_ordered_by_their_bits(tmp_path: Path) -> None:
    save_model(tmp_path)
    measured = load_model(tmp_path)
    formats = {each.value: measured.formats(each) for each in (Precision.INT8, Precision.K8V4, Precision.INT4)}
    scores = read_text(measured, formats, windows_of(400), quiet)
    int8, k8v4, int4 = (fmean(scores[name].divergences) for name in formats)
    assert 0 < int8 < k8v4 < int4


def test_bf16_agrees_with_itself_over_all_turns(tmp_path: Path) -> None:
    save_model(tmp_path)
    measured = load_model(tmp_path)
    asked = [Conversation((tuple(random_tokens(30, 1)), tuple(random_tokens(9, 2)))), Conversation(((5, 6, 7),))]
    formats, ticks = {"again": measured.formats(Precision.BF16)}, []
    answers = follow_answers(measured, formats, asked, 12, lambda: ticks.append(1))["again"]
    assert all(all(answer) for answer in answers)
    # Two turns of two conversations, of which the second has nothing to ask in the second turn.
    assert [bool(answer) for answer in answers] == [True, True, True, False]
    assert len(ticks) <= answer_passes(formats, asked, 12)


def test_the_first_difference_is_that_of_a_format_that_answers_by_itself(tmp_path: Path) -> None:
    save_model(tmp_path)
    measured, formats = load_model(tmp_path), {INT4: load_model(tmp_path).formats(Precision.INT4)}
    asked = [Conversation((tuple(random_tokens(60, seed)),)) for seed in range(6)]
    answers = follow_answers(measured, formats, asked, 40, quiet)[INT4]
    found = [answer.index(False) if False in answer else len(answer) for answer in answers]

    def alone(precision: Precision, one: Conversation) -> list[int]:
        # Two of it: a sequence in company and alone must not be told apart by the order of a sum.
        reader = Reader.open(measured, measured.formats(precision), [200, 200])
        tokens, new = [], list(one.turns[0])
        for _ in range(40):
            new = reader.read([new, new]).argmax(-1)[:1].tolist()
            tokens += new
            if new[0] in measured.tokenizer.eos_token_ids:
                break
        return tokens

    for one, first in zip(asked, found, strict=True):
        exact, own = alone(Precision.BF16, one), alone(Precision.INT4, one)
        same = [mine == theirs for mine, theirs in zip(own, exact, strict=False)]
        assert (same.index(False) if False in same else len(same)) == first
    assert min(found) < 40


def test_other_weights_are_held_against_those_of_bf16(tmp_path: Path) -> None:
    """Each as if it were read alone, and in each format its own prefill."""
    save_model(tmp_path)
    exact, windows = load_model(tmp_path), windows_of(300)
    rounded = MeasuredModel.load(
        str(tmp_path), dtype=torch.float32, device=torch.device("cpu"), weights=WeightFormat.INT8
    )
    formats = {name: rounded.formats(Precision(name)) for name in ("BF16", INT4)}
    named = {"weights": formats["BF16"], "weights and KV": formats[INT4]}
    found = read_text(rounded, named, windows, quiet, exact_of=exact)
    alone = read_text(rounded, {INT4: formats[INT4]}, windows, quiet)
    assert found["BF16"].losses == read_text(exact, {}, windows, quiet)["BF16"].losses
    assert found["weights"].losses == alone["BF16"].losses
    assert found["weights and KV"].losses == alone[INT4].losses
    assert 0 < fmean(found["weights"].divergences) < fmean(found["weights and KV"].divergences)
