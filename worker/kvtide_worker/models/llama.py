"""Llama 2 and 3, and what is built like them: Mistral, SmolLM2, TinyLlama."""

from __future__ import annotations

from kvtide_worker.models.decoder import Decoder


class LlamaModel(Decoder):
    """The decoder as it is. Mistral's window and Llama 3.1's RoPE stand in the configuration."""
