"""A model that runs, whatever its family."""

from __future__ import annotations

from typing import Protocol

import torch

from kvtide_kernels.attention import AttentionStep
from kvtide_worker.models.checkpoint import Checkpoint
from kvtide_worker.models.config import Family, ModelConfig
from kvtide_worker.models.gemma3 import Gemma3Model
from kvtide_worker.models.llama import LlamaModel


class Model(Protocol):
    """A forward pass over a flat batch of tokens."""

    @property
    def config(self) -> ModelConfig:
        """The model's dimensions."""
        ...

    @property
    def weights_bytes(self) -> int:
        """Bytes of all weights; tied ones count once."""
        ...

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, attention: AttentionStep, logit_rows: torch.Tensor
    ) -> torch.Tensor:
        """Logits [len(logit_rows), vocab_size] in the weights' dtype, of the rows whose next token is wanted.

        token_ids, positions [tokens]: the sequences' new tokens one after another, as attention was planned.
        """
        ...


_FAMILIES: dict[Family, type[LlamaModel] | type[Gemma3Model]] = {"llama": LlamaModel, "gemma3": Gemma3Model}


def load_model(checkpoint: Checkpoint, *, dtype: torch.dtype, device: torch.device) -> Model:
    """Read a checkpoint's weights into the model of its family. At its peak it takes them and one chunk of
    `WeightLoader`.
    """
    family = _FAMILIES[checkpoint.config.family]
    return family(checkpoint, dtype=dtype, device=device)
