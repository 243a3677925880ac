"""Attention as the formula says it: all keys in one tensor, one mask, no blocks. It needs none of the kernels."""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention

from kvtide_worker.models.checkpoint import Checkpoint
from kvtide_worker.models.config import ModelConfig
from kvtide_worker.models.model import Model, load_model

CPU = torch.device("cpu")


class DenseAttention:
    """The attention of one sequence that is computed chunk by chunk."""

    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        self._keys: dict[int, torch.Tensor] = {}
        self._values: dict[int, torch.Tensor] = {}

    def run(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """As `AttentionStep.run`, of the tokens that follow those of the steps before."""
        if layer in self._keys:
            key, value = torch.cat([self._keys[layer], key]), torch.cat([self._values[layer], value])
        self._keys[layer], self._values[layer] = key, value
        distance = torch.arange(len(key) - len(query), len(key))[:, None] - torch.arange(len(key))
        seen = distance >= 0
        window = self._config.windows[layer]
        if window is not None:
            seen &= distance < window
        attended = scaled_dot_product_attention(
            *(heads[None].transpose(1, 2) for heads in (query, key, value)),
            attn_mask=seen,
            scale=self._config.attention_scale,
            enable_gqa=True,
        )
        return attended[0].transpose(0, 1)


def dense_logits(model: Model, tokens: torch.Tensor, chunks: list[int]) -> torch.Tensor:
    """Logits [tokens, vocab_size] of every token, computed chunk by chunk."""
    attention, logits, past = DenseAttention(model.config), [], 0
    for new in chunks:
        positions = torch.arange(past, past + new)
        logits.append(model.forward(tokens[past : past + new], positions, attention, torch.arange(new)))
        past += new
    return torch.cat(logits)


def load(checkpoint: Checkpoint, dtype: torch.dtype = torch.float32) -> Model:
    """The checkpoint's model on the CPU."""
    return load_model(checkpoint, dtype=dtype, device=CPU)


def read(checkpoint: Checkpoint, name: str) -> torch.Tensor:
    """The named tensor in float32."""
    out = torch.full(checkpoint.shape(name), float("nan"))
    checkpoint.read(name, out)
    return out
