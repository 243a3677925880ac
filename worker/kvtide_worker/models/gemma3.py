"""Gemma 3; text only."""

from __future__ import annotations

import dataclasses

import torch
from torch.nn.functional import gelu

from kvtide_worker.models.decoder import Decoder, DecoderLayer
from kvtide_worker.models.layers import normalise
from kvtide_worker.models.weights import WeightLoader


class Gemma3Model(Decoder):
    """Norms before, within and behind attention, two RoPEs, windows, scaled embeddings, GELU gates."""

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

    def embed(self, token_ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        """As `Decoder.embed`."""
        # transformers multiplies by a tensor of the weights' dtype: sqrt(640) = 25.298 is 25.25 in bfloat16.
        return super().embed(token_ids, table) * torch.tensor(self.config.hidden_size**0.5).to(table.dtype).item()

    def rms_norm(self, rows: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """As `Decoder.rms_norm`, rounded once, at the end."""
        return (normalise(rows, self.config.rms_norm_eps) * scale).to(rows.dtype)

    def activate(self, gate: torch.Tensor) -> torch.Tensor:
        """As `Decoder.activate`."""
        return gelu(gate, approximate="tanh")
