"""Weights from a Hugging Face folder: *.safetensors beside config.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from kvtide_sizing.errors import UnsupportedModel
from kvtide_worker.models.chunks import row_chunks
from kvtide_worker.models.config import ModelConfig
from kvtide_worker.models.hf_config import read_config


class SafetensorsCheckpoint:
    """A model in a Hugging Face folder. Raises UnsupportedModel for types and options that are not run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.config: ModelConfig = read_config(folder)
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise UnsupportedModel(f"{folder} has no *.safetensors; other weight files are not read")
        self._files: dict[str, Any] = {}
        for file in files:
            opened: Any = safe_open(file, framework="pt")
            self._files.update(dict.fromkeys(opened.keys(), opened))

    def shape(self, name: str) -> tuple[int, ...]:
        """As `Checkpoint.shape`."""
        return tuple(self._stored(name).get_shape())

    def read(self, name: str, out: torch.Tensor) -> None:
        """As `Checkpoint.read`."""
        stored = self._stored(name)
        for rows in row_chunks(self.shape(name)):
            out[rows] = stored[rows]

    def _stored(self, name: str) -> Any:
        if name not in self._files:
            raise KeyError(f"{self._folder} has no tensor {name}, which {self.config.family} models need")
        return self._files[name].get_slice(name)
