"""What the forward pass must know of a Llama-family model beside its weights."""

from __future__ import annotations

from dataclasses import dataclass

from kvtide_worker.models.rope import RopeScaling


@dataclass(frozen=True)
class LlamaConfig:
    """A Llama model's dimensions: names as in Hugging Face's config.json, sizes in elements."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    query_heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling
    tied_embeddings: bool
    eos_token_ids: tuple[int, ...]
