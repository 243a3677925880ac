"""Rotary position embedding: frequencies, their scalings, and the rotation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class NoScaling:
    """The frequencies as trained."""

    def apply(self, frequencies: torch.Tensor, context_tokens: int) -> torch.Tensor:
        """The same frequencies."""
        return frequencies


@dataclass(frozen=True)
class LinearScaling:
    """Positions divided by factor (Hugging Face's `linear`)."""

    factor: float

    def apply(self, frequencies: torch.Tensor, context_tokens: int) -> torch.Tensor:
        """Frequencies [size / 2], scaled."""
        return frequencies / self.factor


@dataclass(frozen=True)
class Llama3Scaling:
    """Llama 3.1's scaling (`llama3`): low frequencies divided, high ones kept, smooth between."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def apply(self, frequencies: torch.Tensor, context_tokens: int) -> torch.Tensor:
        """Frequencies [size / 2], scaled."""
        # How often the trained context holds the wave; below low it is divided, above high it is kept.
        turns = self.original_max_position_embeddings * frequencies / (2 * math.pi)
        kept = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        kept = kept.clamp(0, 1)
        return kept * frequencies + (1 - kept) * frequencies / self.factor


@dataclass(frozen=True)
class FactorScaling:
    """One divisor per frequency, as GGUF files carry Llama 3.1's scaling (tensor `rope_freqs.weight`)."""

    divisors: tuple[float, ...]

    def apply(self, frequencies: torch.Tensor, context_tokens: int) -> torch.Tensor:
        """Frequencies [size / 2], scaled."""
        return frequencies / torch.tensor(self.divisors, device=frequencies.device)


@dataclass(frozen=True)
class LongScaling:
    """Phi-3's scaling (`longrope`, https://arxiv.org/abs/2402.13753): one of two sets of divisors, one per frequency.

    short:             for contexts up to original_max_position_embeddings
    long:              for longer ones
    attention_factor:  what rotated queries and keys are multiplied by, each

    Cached keys keep the set that they were rotated with, so that one is chosen for all sequences by the longest context
    that is served. transformers chooses by the length of each prompt, and throws its cache away where that grows out.
    """

    short: tuple[float, ...]
    long: tuple[float, ...]
    original_max_position_embeddings: int
    attention_factor: float

    def apply(self, frequencies: torch.Tensor, context_tokens: int) -> torch.Tensor:
        """Frequencies [size / 2], scaled."""
        is_long = context_tokens > self.original_max_position_embeddings
        return frequencies / torch.tensor(self.long if is_long else self.short, device=frequencies.device)


# Cosines and signed sines [tokens, 1, size].
Rotation = tuple[torch.Tensor, torch.Tensor]

RopeScaling = NoScaling | LinearScaling | Llama3Scaling | FactorScaling | LongScaling


@dataclass(frozen=True)
class Rope:
    """theta: the base of the frequencies; size: how many elements of a head are rotated, its first ones."""

    theta: float
    scaling: RopeScaling
    size: int


class RotaryEmbedding:
    """The rotation of query and key heads by position. No table: a long context's would be tens of MiB.

    context_tokens: the longest sequence that is served
    """

    def __init__(self, rope: Rope, *, context_tokens: int, dtype: torch.dtype, device: torch.device) -> None:
        exponents = torch.arange(0, rope.size, 2, dtype=torch.float32, device=device) / rope.size
        self._frequencies = rope.scaling.apply(1.0 / rope.theta**exponents, context_tokens)
        self._factor = rope.scaling.attention_factor if isinstance(rope.scaling, LongScaling) else 1.0
        self._dtype = dtype

    def at(self, positions: torch.Tensor) -> Rotation:
        """Cosines and signed sines [tokens, 1, size] for `rotate`, computed once for all layers."""
        angles = torch.outer(positions.float(), self._frequencies)[:, None]
        cos, sin = ((wave * self._factor).to(self._dtype) for wave in (angles.cos(), angles.sin()))
        return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)


def rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate heads [tokens, heads, head_dim] in their first `size` elements, whose halves are the two coordinates."""
    size = cos.shape[-1]
    if size < heads.shape[-1]:
        return torch.cat([rotate(heads[..., :size], cos, sin), heads[..., size:]], dim=-1)
    swapped = heads.roll(size // 2, dims=-1)
    return (heads * cos).add_(swapped.mul_(sin))
