"""Qwen 3, dense."""

from __future__ import annotations

import dataclasses

from kvtide_worker.models.decoder import Decoder
from kvtide_worker.models.layers import DecoderLayer
from kvtide_worker.models.weights import WeightLoader


class Qwen3Model(Decoder):
    """Llama, but each head of queries and keys is normalised before it is rotated."""

    def load_layer(self, weights: WeightLoader, prefix: str) -> DecoderLayer:
        """As `Decoder.load_layer`."""
        layer = super().load_layer(weights, prefix)
        return dataclasses.replace(layer, heads_norm=self.load_heads_norm(weights, prefix))
