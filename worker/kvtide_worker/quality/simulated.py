"""What a format makes of a whole text at once: attention as in decodes of each of its tokens, without a pool.

One pass for all tokens of a text, and in the model's dtype throughout: in float32 it shows the loss
of one layer's side, which is less than what the kernels' bfloat16 makes of any difference.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from kvtide_kernels.attention import seen_in_text
from kvtide_kernels.codec import decode, encode
from kvtide_kernels.key_basis import KeyBasis
from kvtide_sizing.formats import BF16, RECENT_TOKENS, LayerFormat, VectorFormat
from kvtide_worker.models.config import ModelConfig


@dataclass(frozen=True)
class SimulatedStep:
    """An `AttentionStep` over the first tokens of one sequence, each of which sees what a decode of it would see.

    bases: of every layer whose format has one
    """

    config: ModelConfig
    formats: Sequence[LayerFormat]
    bases: Mapping[int, KeyBasis]

    def run(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """As `AttentionStep.run`, of the tokens 0 to len(query) - 1."""
        stored, window = self.formats[layer], self.config.windows[layer]
        if stored.has_key_basis:
            query, key = self.bases[layer].queries(query), self.bases[layer].keys(key)
        position = torch.arange(len(key), device=key.device)
        behind = position[:, None] - position
        seen = seen_in_text(len(key), window, key.device)
        recent = behind < (RECENT_TOKENS if stored.keeps_recent else 0)
        group = query.shape[1] // key.shape[1]
        # [heads, tokens, dim]
        queries = query.transpose(0, 1)
        keys, packed_keys, values, packed_values = (
            side.transpose(0, 1).repeat_interleave(group, dim=0)
            for side in (
                through(BF16, key),
                through(stored.key, key),
                through(BF16, value),
                through(stored.value, value),
            )
        )
        scores = torch.where(recent, queries @ keys.mT, queries @ packed_keys.mT) * self.config.attention_scale
        weights = scores.masked_fill(~seen, -math.inf).softmax(-1)
        return ((weights * recent) @ values + (weights * ~recent) @ packed_values).transpose(0, 1)


def through(stored: VectorFormat, x: torch.Tensor) -> torch.Tensor:
    """What is left of vectors [..., dim] that were stored so, in their own dtype."""
    return decode(stored, encode(stored, x), x.shape[-1]).to(x.dtype)
