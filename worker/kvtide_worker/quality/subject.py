"""What formats are measured on: a model with its weights and the bases of its keys. It needs no tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from kvtide_kernels.key_basis import KeyBasis
from kvtide_sizing.formats import LayerFormat, Precision, layer_formats
from kvtide_sizing.shape import ModelShape
from kvtide_worker.models.model import Model

# Of no consequence for what is stored; the size that the planner chooses most.
BLOCK_SIZE = 64


@dataclass(frozen=True)
class Subject:
    """bases: of every layer whose keys are stored in one; device: where weights and pools are; block_size in tokens."""

    shape: ModelShape
    model: Model
    bases: Mapping[int, KeyBasis]
    device: torch.device
    block_size: int = field(default=BLOCK_SIZE, kw_only=True)

    def formats(self, precision: Precision) -> tuple[LayerFormat, ...]:
        """Each layer's."""
        return layer_formats(self.shape, precision)
