"""A model on disk, whatever its file format."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch

from kvtide_sizing.errors import ModelNotFound, UnsupportedModel
from kvtide_worker.models.config import ModelConfig
from kvtide_worker.models.gguf import GgufCheckpoint
from kvtide_worker.models.safetensors import SafetensorsCheckpoint


class Checkpoint(Protocol):
    """Weights under Hugging Face's names, in its row order and with its meaning, whatever the file has."""

    @property
    def config(self) -> ModelConfig:
        """The model's dimensions."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """The named tensor's dimensions. Raises KeyError where it is absent."""
        ...

    def read(self, name: str, out: torch.Tensor) -> None:
        """Fill out, of the tensor's shape and of any dtype and device, some rows at a time (`chunks.row_chunks`).

        Raises KeyError where the tensor is absent.
        """
        ...


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a .gguf file or a Hugging Face folder; only headers are read here.

    Raises ModelNotFound where there is no model, UnsupportedModel where the worker does not run it.
    """
    if path.is_file() and path.suffix == ".gguf":
        return GgufCheckpoint(path)
    if (path / "config.json").is_file():
        return SafetensorsCheckpoint(path)
    if not path.exists():
        raise ModelNotFound(f"there is no model at {path}")
    raise UnsupportedModel(
        f"{path} is neither a .gguf file nor a folder with config.json and *.safetensors, the two formats that are read"
    )
