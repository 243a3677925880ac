"""Phi 3 and 4."""

from __future__ import annotations

from kvtide_worker.models.decoder import Decoder


class Phi3Model(Decoder):
    """Llama, but its files have the merged matrices already; LongRoPE stands in the configuration."""

    QKV = ("qkv_proj",)
    GATE_UP = ("gate_up_proj",)
