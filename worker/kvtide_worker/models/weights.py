"""From a checkpoint's tensors to a model's: merged, in their dtype, on their device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kvtide_worker.models.checkpoint import Checkpoint


@dataclass(frozen=True)
class WeightLoader:
    """Loads weights where they stay, with no second copy on the way: the peak is the weights and one chunk.

    A chunk is `chunks.CHUNK_ELEMENTS` elements in float32, twice of that for a quantised GGUF: 8 MiB.
    """

    checkpoint: Checkpoint
    dtype: torch.dtype
    device: torch.device

    def load(self, *names: str) -> torch.Tensor:
        """The tensors NAME.weight, one under the other where there are several: [sum of rows, ...].

        Raises KeyError where the checkpoint has no such tensor.
        """
        return self._merged([f"{name}.weight" for name in names])

    def load_biases(self, *names: str) -> torch.Tensor:
        """As `load`, the tensors NAME.bias: [sum of rows]."""
        return self._merged([f"{name}.bias" for name in names])

    def _merged(self, names: Sequence[str]) -> torch.Tensor:
        shapes = [self.checkpoint.shape(name) for name in names]
        rows = [shape[0] for shape in shapes]
        merged = torch.empty((sum(rows), *shapes[0][1:]), dtype=self.dtype, device=self.device)
        for name, part in zip(names, torch.split(merged, rows), strict=True):
            self.checkpoint.read(name, part)
        return merged
