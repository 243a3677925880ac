"""Gemma 3; text only."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch

from kvtide_kernels.cpu.layers import Gate
from kvtide_worker.models.decoder import Decoder
from kvtide_worker.models.layers import DecoderLayer
from kvtide_worker.models.weights import WeightLoader


class Gemma3Model(Decoder):
    """Norms before, within and behind attention, two RoPEs, windows, scaled embeddings, GELU gates."""

    GATE: ClassVar[Gate] = "gelu_tanh"

    def load_layer(self, weights: WeightLoader, prefix: str) -> DecoderLayer:
        """As `Decoder.load_layer`."""
        layer = super().load_layer(weights, prefix)
        return dataclasses.replace(
            layer,
            heads_norm=self.load_heads_norm(weights, prefix),
            # Unlike Llama's, what is called post_attention_layernorm is of what attention gives.
            attention_out_norm=layer.mlp_norm,
            mlp_norm=self.load_norm(weights, f"{prefix}.pre_feedforward_layernorm"),
            mlp_out_norm=self.load_norm(weights, f"{prefix}.post_feedforward_layernorm"),
        )

    def load_norm(self, weights: WeightLoader, name: str) -> torch.Tensor:
        """1 + weight in float32, which is what Gemma multiplies by."""
        return 1.0 + weights.load(name).float()

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """As `Decoder.embed`."""
        rows = super().embed(token_ids)
        # transformers multiplies by a tensor of the weights' dtype: sqrt(640) = 25.298 is 25.25 in bfloat16.
        return rows * torch.tensor(self.config.hidden_size**0.5).to(rows.dtype).item()
