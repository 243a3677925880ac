"""A model that is measured by itself: what `Subject` has, its name and its tokenizer."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvtide_sizing.errors import UnsupportedModel
from kvtide_sizing.formats import Precision, layer_formats
from kvtide_sizing.memory.weights import WeightFormat
from kvtide_sizing.models.inspect import inspect_model
from kvtide_worker.engine.calibration import calibration_tokens
from kvtide_worker.engine.key_bases import fit_key_bases
from kvtide_worker.models.checkpoint import open_checkpoint
from kvtide_worker.models.model import load_model
from kvtide_worker.models.source import fetch
from kvtide_worker.quality.subject import Subject
from kvtide_worker.server.planning import model_name, model_uri
from kvtide_worker.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class MeasuredModel(Subject):
    """name: the last part of where it is."""

    name: str
    tokenizer: Tokenizer

    @classmethod
    def load(
        cls, text: str, *, dtype: torch.dtype, device: torch.device, weights: WeightFormat = WeightFormat.BF16
    ) -> MeasuredModel:
        """Load what `kvtide serve --model` takes, its matrices in this format, and fit its bases as the worker does.

        Raises SizingError where there is none or it is not run, UnsupportedTokenizerError for its tokenizer.
        """
        uri = model_uri(text)
        path = fetch(uri)
        shape = inspect_model(path)
        if shape.unserved is not None:
            raise UnsupportedModel(f"{uri} cannot be measured, because it is not served: {shape.unserved}")
        tokenizer = Tokenizer.load(path)
        model = load_model(open_checkpoint(path), dtype=dtype, device=device, weight_format=weights)
        # Of every layer: whichever formats are measured, those that have no basis leave theirs out.
        int8 = layer_formats(shape, Precision.INT8)
        bases = fit_key_bases(model, int8, calibration_tokens(tokenizer).fitted, device)
        return cls(shape, model, bases, device, model_name(uri), tokenizer)

    @property
    def start(self) -> list[int]:
        """The tokens that the model wants before a text."""
        return self.tokenizer.encode("", add_special_tokens=True)
