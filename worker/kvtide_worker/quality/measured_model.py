"""A model that is measured: its shape, its weights, its tokenizer and the bases of its keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from kvtide_kernels.key_basis import KeyBasis
from kvtide_sizing.errors import UnsupportedModel
from kvtide_sizing.formats import LayerFormat, Precision, layer_formats
from kvtide_sizing.models.inspect import inspect_model
from kvtide_sizing.shape import ModelShape
from kvtide_worker.engine.calibration import calibration_tokens
from kvtide_worker.engine.key_bases import fit_key_bases
from kvtide_worker.models.checkpoint import open_checkpoint
from kvtide_worker.models.model import Model, load_model
from kvtide_worker.models.source import fetch
from kvtide_worker.server.planning import model_name, model_uri
from kvtide_worker.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class MeasuredModel:
    """name: the last part of where it is; bases: of every layer; device: where weights and pools are."""

    name: str
    shape: ModelShape
    model: Model
    tokenizer: Tokenizer
    bases: Mapping[int, KeyBasis]
    device: torch.device

    @classmethod
    def load(cls, text: str, *, dtype: torch.dtype, device: torch.device) -> MeasuredModel:
        """Load what `kvtide serve --model` takes, and fit its bases as the worker does.

        Raises SizingError where there is none or it is not run, UnsupportedTokenizerError for its tokenizer.
        """
        uri = model_uri(text)
        path = fetch(uri)
        shape = inspect_model(path)
        if shape.unserved is not None:
            raise UnsupportedModel(f"{uri} cannot be measured, because it is not served: {shape.unserved}")
        tokenizer = Tokenizer.load(path)
        model = load_model(open_checkpoint(path), dtype=dtype, device=device)
        # Of every layer: whichever formats are measured, those that have no basis leave theirs out.
        int8 = layer_formats(shape, Precision.INT8)
        bases = fit_key_bases(model, int8, calibration_tokens(tokenizer), device)
        return cls(model_name(uri), shape, model, tokenizer, bases, device)

    @property
    def start(self) -> list[int]:
        """The tokens that the model wants before a text."""
        return self.tokenizer.encode("", add_special_tokens=True)

    def formats(self, precision: Precision) -> tuple[LayerFormat, ...]:
        """Each layer's."""
        return layer_formats(self.shape, precision)
