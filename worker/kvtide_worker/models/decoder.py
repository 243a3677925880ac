"""A decoder's forward pass over a flat batch of tokens: what families share, and the few places where they differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.nn.functional import embedding, silu

from kvtide_kernels.attention import AttentionStep
from kvtide_worker.models.checkpoint import Checkpoint
from kvtide_worker.models.config import ModelConfig
from kvtide_worker.models.layers import normalise, project
from kvtide_worker.models.rope import RotaryEmbedding, rotate
from kvtide_worker.models.weights import WeightLoader, loaded_bytes


@dataclass(frozen=True)
class DecoderLayer:
    """One layer's weights, [out, in]. What reads the same input is one matrix: q, k, v, and gate, up.

    What only some families have is None in the others:

    qkv_bias:                          [out of qkv]
    heads_norm:                        [query_heads + kv_heads, head_dim]: of each head of queries and keys
    attention_out_norm, mlp_out_norm:  of what goes back to the residual
    """

    attention_norm: torch.Tensor
    qkv: torch.Tensor
    attention_out: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    qkv_bias: torch.Tensor | None = None
    heads_norm: torch.Tensor | None = None
    attention_out_norm: torch.Tensor | None = None
    mlp_out_norm: torch.Tensor | None = None


class Decoder:
    """RMSNorm, RoPE, grouped-query attention and gated MLPs, as Llama has them. It rounds where transformers rounds.

    A family's class says what it has otherwise: names of tensors, further weights of a layer, how embeddings and norms
    scale, what its gates are.

    context_tokens: the longest sequence that is served
    """

    # The parts of a layer's merged matrices, by Hugging Face's names.
    QKV: ClassVar[tuple[str, ...]] = ("q_proj", "k_proj", "v_proj")
    GATE_UP: ClassVar[tuple[str, ...]] = ("gate_proj", "up_proj")

    def __init__(
        self, checkpoint: Checkpoint, *, context_tokens: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.config: ModelConfig = checkpoint.config
        weights = WeightLoader(checkpoint, dtype, device)
        self._embedding = weights.load("model.embed_tokens")
        self._layers = [self.load_layer(weights, f"model.layers.{index}") for index in range(self.config.num_layers)]
        self._norm = self.load_norm(weights, "model.norm")
        self._lm_head = self._embedding if self.config.tied_embeddings else weights.load("lm_head")
        self._ropes = {
            rope: RotaryEmbedding(rope, context_tokens=context_tokens, dtype=dtype, device=device)
            for rope in (self.config.rope, self.config.window_rope)
            if rope is not None
        }

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
        rotations = {rope: table.at(positions) for rope, table in self._ropes.items()}
        hidden = self.embed(token_ids, self._embedding)
        for index, layer in enumerate(self._layers):
            rotation = rotations[self.config.rope_of(index)]
            # Unnamed, what was attended to does not live beside the MLP.
            hidden = hidden + self._norm_or_same(
                self._attend(index, layer, hidden, rotation, attention), layer.attention_out_norm
            )
            hidden = hidden + self._norm_or_same(self._mlp(layer, hidden), layer.mlp_out_norm)
        return project(self.rms_norm(hidden[logit_rows], self._norm), self._lm_head)

    def load_layer(self, weights: WeightLoader, prefix: str) -> DecoderLayer:
        """The layer whose tensors' names begin with prefix."""
        return DecoderLayer(
            attention_norm=self.load_norm(weights, f"{prefix}.input_layernorm"),
            qkv=weights.load(*(f"{prefix}.self_attn.{part}" for part in self.QKV)),
            attention_out=weights.load(f"{prefix}.self_attn.o_proj"),
            mlp_norm=self.load_norm(weights, f"{prefix}.post_attention_layernorm"),
            gate_up=weights.load(*(f"{prefix}.mlp.{part}" for part in self.GATE_UP)),
            down=weights.load(f"{prefix}.mlp.down_proj"),
        )

    def load_norm(self, weights: WeightLoader, name: str) -> torch.Tensor:
        """What `rms_norm` takes as scale."""
        return weights.load(name)

    def load_heads_norm(self, weights: WeightLoader, prefix: str) -> torch.Tensor:
        """`DecoderLayer.heads_norm`, of the two norms that the heads of queries and of keys share."""
        query, key = (self.load_norm(weights, f"{prefix}.self_attn.{side}_norm") for side in "qk")
        return torch.stack([query] * self.config.query_heads + [key] * self.config.kv_heads)

    def embed(self, token_ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        """The residual [tokens, hidden_size] before the first layer."""
        return embedding(token_ids, table)

    def rms_norm(self, rows: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """rows [..., size] over their root mean square, times scale."""
        return scale * normalise(rows, self.config.rms_norm_eps).to(rows.dtype)

    def activate(self, gate: torch.Tensor) -> torch.Tensor:
        """What the other half of an MLP is multiplied by."""
        return silu(gate)

    def _attend(
        self,
        index: int,
        layer: DecoderLayer,
        hidden: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        attention: AttentionStep,
    ) -> torch.Tensor:
        query_heads, kv_heads, head_dim = self.config.query_heads, self.config.kv_heads, self.config.head_dim
        heads = project(self.rms_norm(hidden, layer.attention_norm), layer.qkv, layer.qkv_bias)
        heads = heads.view(-1, query_heads + 2 * kv_heads, head_dim)
        rotated = rotate(self._norm_or_same(heads[:, : query_heads + kv_heads], layer.heads_norm), *rotation)
        attended = attention.run(
            index,
            query=rotated[:, :query_heads],
            key=rotated[:, query_heads:],
            value=heads[:, query_heads + kv_heads :],
        )
        return project(attended.flatten(1), layer.attention_out)

    def _mlp(self, layer: DecoderLayer, hidden: torch.Tensor) -> torch.Tensor:
        gate, up = project(self.rms_norm(hidden, layer.mlp_norm), layer.gate_up).chunk(2, dim=-1)
        return project(self.activate(gate) * up, layer.down)

    def _norm_or_same(self, rows: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
        return rows if scale is None else self.rms_norm(rows, scale)
