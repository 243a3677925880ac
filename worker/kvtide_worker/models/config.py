"""What the forward pass must know of a model beside its weights, whatever its family."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvtide_worker.models.rope import Rope

Family = Literal["llama", "qwen2", "qwen3", "gemma3", "phi3"]


@dataclass(frozen=True)
class ModelConfig:
    """A model's dimensions: names as in Hugging Face's config.json, sizes in elements.

    windows:          per layer, how many of the last tokens a token sees, itself included; None: all of them
    attention_scale:  what scores are multiplied by
    rope:             of all layers, but for those with a window where they have another
    window_rope:      of these; None where there is no other
    """

    family: Family
    num_layers: int
    hidden_size: int
    intermediate_size: int
    query_heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    attention_scale: float
    windows: tuple[int | None, ...]
    rope: Rope
    window_rope: Rope | None
    tied_embeddings: bool
    eos_token_ids: tuple[int, ...]

    def rope_of(self, layer: int) -> Rope:
        """How a layer's queries and keys are rotated."""
        if self.window_rope is None or self.windows[layer] is None:
            return self.rope
        return self.window_rope
