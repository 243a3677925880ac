"""The attention that formats are measured with: the one that serves, also for a model in float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kvtide_kernels.attention import AttentionStep, PagedAttention, SequenceSpan


@dataclass(frozen=True)
class InBfloat16:
    """Kernels take bfloat16, as what they store is: a model in float32 is rounded to it here and nowhere else."""

    attention: PagedAttention

    def plan(self, spans: Sequence[SequenceSpan]) -> AttentionStep:
        """As `PagedAttention.plan`."""
        return _Step(self.attention.plan(spans))


# Of each layer, what its attention was asked: query, key and value in bfloat16.
Recording = dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class Recorded:
    """A step that keeps what it is asked."""

    step: AttentionStep
    into: Recording

    def run(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """As `AttentionStep.run`."""
        # Copies: the three are views of the layer's whole projection in another dtype.
        self.into[layer] = query.bfloat16().clone(), key.bfloat16().clone(), value.bfloat16().clone()
        return self.step.run(layer, query, key, value)


@dataclass(frozen=True)
class _Step:
    step: AttentionStep

    def run(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """As `AttentionStep.run`."""
        return self.step.run(layer, query.bfloat16(), key.bfloat16(), value.bfloat16()).to(query.dtype)
