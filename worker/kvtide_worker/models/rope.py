"""Rotary position embedding: frequencies, their scalings, and the rotation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class NoScaling:
    """The frequencies as trained."""

    def apply(self, frequencies: torch.Tensor) -> torch.Tensor:
        """The same frequencies."""
        return frequencies


@dataclass(frozen=True)
class LinearScaling:
    """Positions divided by factor (Hugging Face's `linear`)."""

    factor: float

    def apply(self, frequencies: torch.Tensor) -> torch.Tensor:
        """Frequencies [head_dim / 2], scaled."""
        return frequencies / self.factor


@dataclass(frozen=True)
class Llama3Scaling:
    """Llama 3.1's scaling (`llama3`): low frequencies divided, high ones kept, smooth between."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def apply(self, frequencies: torch.Tensor) -> torch.Tensor:
        """Frequencies [head_dim / 2], scaled."""
        # How often the trained context holds the wave; below low it is divided, above high it is kept.
        turns = self.original_max_position_embeddings * frequencies / (2 * math.pi)
        kept = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        kept = kept.clamp(0, 1)
        return kept * frequencies + (1 - kept) * frequencies / self.factor


@dataclass(frozen=True)
class FactorScaling:
    """One divisor per frequency, as GGUF files carry Llama 3.1's scaling (tensor `rope_freqs.weight`)."""

    divisors: tuple[float, ...]

    def apply(self, frequencies: torch.Tensor) -> torch.Tensor:
        """Frequencies [head_dim / 2], scaled."""
        return frequencies / torch.tensor(self.divisors, device=frequencies.device)


RopeScaling = NoScaling | LinearScaling | Llama3Scaling | FactorScaling


@dataclass(frozen=True)
class Rope:
    """theta: the base of the frequencies."""

    theta: float
    scaling: RopeScaling


class RotaryEmbedding:
    """The rotation of query and key heads by position. No table: a long context's would be tens of MiB."""

    def __init__(self, *, head_dim: int, rope: Rope, dtype: torch.dtype, device: torch.device) -> None:
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim
        self._frequencies = rope.scaling.apply(1.0 / rope.theta**exponents)
        self._dtype = dtype

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and signed sines [tokens, 1, head_dim] for `rotate`, computed once for all layers."""
        angles = torch.outer(positions.float(), self._frequencies)[:, None]
        cos, sin = angles.cos().to(self._dtype), angles.sin().to(self._dtype)
        return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)


def rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate heads [tokens, heads, head_dim]; a head's halves are the two coordinates."""
    swapped = heads.roll(heads.shape[-1] // 2, dims=-1)
    return (heads * cos).add_(swapped.mul_(sin))
