"""A measurement from its settings to its report."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import torch

from kvtide_kernels.backends import check_served
from kvtide_sizing.errors import InvalidModel, InvalidWorkload, UnsupportedPrecision
from kvtide_sizing.formats import LayerFormat, Precision, bytes_per_token
from kvtide_sizing.memory.weights import WeightFormat
from kvtide_sizing.models.sensitivity import with_measurement
from kvtide_worker.engine.cgroup import Cgroup
from kvtide_worker.quality.compare import Tick, answer_passes, follow_answers, read_text, text_passes
from kvtide_worker.quality.conversations import conversations
from kvtide_worker.quality.formats import measured_formats, precisions, with_weights
from kvtide_worker.quality.measured_model import MeasuredModel
from kvtide_worker.quality.report import FormatReport, QualityReport
from kvtide_worker.quality.sensitivity import (
    Sensitivity,
    measure_sensitivity,
    sensitivity_passes,
)
from kvtide_worker.quality.statistics import answer_row, difference, text_row
from kvtide_worker.quality.windows import cut, spread

_OWN_TEXT = "text.txt"

# Read as one chunk at the beginning of each window: twice the recent tokens.
PREFILLED = 64

# Few tokens, as all of them are read 4 · layers times, and far into a context: most of it is packed then.
SENSITIVITY_WINDOWS, SENSITIVITY_WINDOW_TOKENS, SENSITIVITY_SCORED = 2, 384, 256

_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}

# Given what is done and how many passes it takes, a context in which each pass is told.
Progress = Callable[[str, int], AbstractContextManager[Tick]]


@dataclass(frozen=True)
class Settings:
    """What is measured.

    model:           as `kvtide serve --model` takes it
    texts:           files; the project's own text where there are none
    tokens:          how many are scored at most
    window_tokens:   of a text that are read as one sequence
    answer_tokens:   of each greedy answer at most; 0 for none
    sensitivity:     a file that Mixed is chosen by
    weights:         how the model's matrices are held; others than BF16 are held against BF16 too
    """

    model: str
    texts: Sequence[Path] = ()
    precisions: Sequence[str] = ("INT8", "K8V4", "Mixed", "INT4")
    tokens: int = 4096
    window_tokens: int = 512
    answer_tokens: int = 128
    sensitivity: Path | None = None
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    device: Literal["cpu", "cuda"] = "cpu"
    threads: int | None = None
    weights: WeightFormat = WeightFormat.BF16


def measure(settings: Settings, progress: Progress) -> QualityReport:
    """Measure all formats. Raises SizingError, UnsupportedTokenizerError and ValueError with what would work."""
    wanted = precisions(settings.precisions)
    texts = _texts(settings)
    measured = _load(settings, progress)
    if settings.sensitivity is not None:
        shape = with_measurement(measured.shape, _json(settings.sensitivity))
        measured = dataclasses.replace(measured, shape=shape)
    chosen, exact_of = measured_formats(measured.shape, wanted), None
    if settings.weights is not WeightFormat.BF16:
        chosen = with_weights(measured.shape, settings.weights, chosen)
        exact_of = _load(dataclasses.replace(settings, weights=WeightFormat.BF16), progress)
    formats = {each.name: each.layers for each in chosen}
    _check(measured, [layer for layers in formats.values() for layer in layers])
    windows = cut(
        _tokens(measured, texts),
        measured.start,
        size=min(settings.window_tokens, measured.model.config.max_position_embeddings),
        prefilled=PREFILLED,
        scored=settings.tokens,
    )
    with progress("reading the text", text_passes(formats, windows)) as tick:
        scores = read_text(measured, formats, windows, tick, exact_of=exact_of)
    answers: dict[str, list[list[bool]]] = {}
    if settings.answer_tokens:
        asked = conversations(measured.tokenizer)
        with progress("answering greedily", answer_passes(formats, asked, settings.answer_tokens)) as tick:
            answers = follow_answers(measured, formats, asked, settings.answer_tokens, tick, exact_of=exact_of)
    exact = scores[Precision.BF16.value]
    rows = [
        FormatReport(
            name=Precision.BF16.value,
            bytes_per_token=bytes_per_token(measured.shape, Precision.BF16),
            bound_percent=None,
            text=text_row(exact, exact),
            answers=None,
        )
    ]
    rows += [
        FormatReport(
            name=each.name,
            bytes_per_token=each.bytes_per_token(measured.shape),
            bound_percent=each.bound_percent,
            text=text_row(scores[each.name], exact),
            answers=answer_row(answers[each.name]) if answers else None,
            beside=(each.beside, difference(scores[each.name], scores[each.beside])) if each.beside else None,
        )
        for each in chosen
    ]
    return QualityReport(measured.name, settings.dtype, list(texts), len(exact.losses), rows, settings.weights.value)


def measure_layers(settings: Settings, progress: Progress) -> Sensitivity:
    """Measure each layer's sides alone, in float32 whatever the settings. Raises as `measure`."""
    texts = _texts(settings)
    measured = _load(dataclasses.replace(settings, dtype="float32"), progress)
    windows = spread(
        _tokens(measured, texts),
        measured.start,
        count=SENSITIVITY_WINDOWS,
        size=SENSITIVITY_WINDOW_TOKENS,
        scored=SENSITIVITY_SCORED,
    )
    with progress("reading the text", sensitivity_passes(measured.shape.num_layers, windows)) as tick:
        return measure_sensitivity(measured, ", ".join(texts), windows, tick)


def own_text() -> str:
    """What is read where no text is named."""
    return files("kvtide_worker.quality").joinpath(_OWN_TEXT).read_text(encoding="utf-8")


def _texts(settings: Settings) -> dict[str, str]:
    """The texts by their names. Raises InvalidWorkload for a file that is no text."""
    if not settings.texts:
        return {"the project's own text": own_text()}
    try:
        return {str(file): file.read_text(encoding="utf-8") for file in settings.texts}
    except UnicodeDecodeError as error:
        raise InvalidWorkload(f"a text is no UTF-8: {error}; convert it, for example with iconv") from error


def _json(file: Path) -> dict[str, Any]:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidModel(f"{file} is no JSON as `kvtide quality --sensitivity` writes it: {error}") from error
    return data if isinstance(data, dict) else {}


def _tokens(measured: MeasuredModel, texts: dict[str, str]) -> list[int]:
    return [token for text in texts.values() for token in measured.tokenizer.encode(text, add_special_tokens=False)]


def _load(settings: Settings, progress: Progress) -> MeasuredModel:
    torch.set_num_threads(settings.threads or Cgroup().cpus())
    with progress("loading the model and fitting its key bases", 1) as tick:
        loaded = MeasuredModel.load(
            settings.model,
            dtype=_DTYPES[settings.dtype],
            device=torch.device(settings.device),
            weights=settings.weights,
        )
        tick()
    return loaded


def _check(measured: MeasuredModel, formats: Sequence[LayerFormat]) -> None:
    config = measured.model.config
    try:
        check_served(
            measured.device,
            formats,
            head_dim=config.head_dim,
            query_heads=config.query_heads,
            kv_heads=config.kv_heads,
            block_size=measured.block_size,
        )
    except ValueError as error:
        raise UnsupportedPrecision(f"{measured.name} cannot be measured: {error}") from error
