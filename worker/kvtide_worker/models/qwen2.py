"""Qwen 2 and 2.5."""

from __future__ import annotations

import dataclasses

from kvtide_worker.models.decoder import Decoder
from kvtide_worker.models.layers import DecoderLayer
from kvtide_worker.models.weights import WeightLoader


class Qwen2Model(Decoder):
    """Llama, but queries, keys and values have biases."""

    def load_layer(self, weights: WeightLoader, prefix: str) -> DecoderLayer:
        """As `Decoder.load_layer`."""
        layer = super().load_layer(weights, prefix)
        return dataclasses.replace(
            layer, qkv_bias=weights.load_biases(*(f"{prefix}.self_attn.{part}" for part in self.QKV))
        )
