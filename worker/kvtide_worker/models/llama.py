"""The Llama family's forward pass over a flat batch of tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import embedding, silu

from kvtide_kernels.attention import AttentionStep
from kvtide_worker.models.checkpoint import Checkpoint
from kvtide_worker.models.config import ModelConfig
from kvtide_worker.models.layers import normalise, project
from kvtide_worker.models.rope import RotaryEmbedding, rotate
from kvtide_worker.models.weights import WeightLoader, loaded_bytes


@dataclass(frozen=True)
class LlamaLayer:
    """One layer's weights, [out, in]. What reads the same input is one matrix: q, k, v, and gate, up."""

    attention_norm: torch.Tensor
    qkv: torch.Tensor
    attention_out: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


class LlamaModel:
    """RMSNorm, RoPE, grouped-query attention, SwiGLU. It rounds where transformers rounds."""

    def __init__(self, checkpoint: Checkpoint, *, dtype: torch.dtype, device: torch.device) -> None:
        self.config: ModelConfig = checkpoint.config
        load = WeightLoader(checkpoint, dtype, device).load
        self._embedding = load("model.embed_tokens")
        self._layers = [
            LlamaLayer(
                attention_norm=load(f"{prefix}.input_layernorm"),
                qkv=load(*(f"{prefix}.self_attn.{part}_proj" for part in "qkv")),
                attention_out=load(f"{prefix}.self_attn.o_proj"),
                mlp_norm=load(f"{prefix}.post_attention_layernorm"),
                gate_up=load(f"{prefix}.mlp.gate_proj", f"{prefix}.mlp.up_proj"),
                down=load(f"{prefix}.mlp.down_proj"),
            )
            for prefix in (f"model.layers.{index}" for index in range(self.config.num_layers))
        ]
        self._norm = load("model.norm")
        self._lm_head = self._embedding if self.config.tied_embeddings else load("lm_head")
        self._rope = RotaryEmbedding(head_dim=self.config.head_dim, rope=self.config.rope, dtype=dtype, device=device)

    @property
    def weights_bytes(self) -> int:
        """Bytes of all weights; tied ones count once."""
        return loaded_bytes((self._embedding, self._norm, self._lm_head), self._layers)

    @torch.inference_mode()
    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        attention: AttentionStep,
        logit_rows: torch.Tensor,
    ) -> torch.Tensor:
        """As `Model.forward`."""
        cos, sin = self._rope.at(positions)
        hidden = embedding(token_ids, self._embedding)
        for index, layer in enumerate(self._layers):
            hidden = hidden + self._attend(index, layer, hidden, cos, sin, attention)
            hidden = hidden + self._mlp(layer, hidden)
        return project(self._rms_norm(hidden[logit_rows], self._norm), self._lm_head)

    def _attend(
        self,
        index: int,
        layer: LlamaLayer,
        hidden: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        attention: AttentionStep,
    ) -> torch.Tensor:
        config = self.config
        heads = project(self._rms_norm(hidden, layer.attention_norm), layer.qkv)
        heads = heads.view(-1, config.query_heads + 2 * config.kv_heads, config.head_dim)
        rotated = rotate(heads[:, : config.query_heads + config.kv_heads], cos, sin)
        attended = attention.run(
            index,
            query=rotated[:, : config.query_heads],
            key=rotated[:, config.query_heads :],
            value=heads[:, config.query_heads + config.kv_heads :],
        )
        return project(attended.flatten(1), layer.attention_out)

    def _mlp(self, layer: LlamaLayer, hidden: torch.Tensor) -> torch.Tensor:
        gate, up = project(self._rms_norm(hidden, layer.mlp_norm), layer.gate_up).chunk(2, dim=-1)
        return project(silu(gate) * up, layer.down)

    def _rms_norm(self, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return weight * normalise(hidden, self.config.rms_norm_eps).to(hidden.dtype)
