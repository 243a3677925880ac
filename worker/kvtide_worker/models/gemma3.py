"""Gemma 3's forward pass over a flat batch of tokens; text only."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import embedding, gelu

from kvtide_kernels.attention import AttentionStep
from kvtide_worker.models.checkpoint import Checkpoint
from kvtide_worker.models.config import ModelConfig
from kvtide_worker.models.layers import normalise, project
from kvtide_worker.models.rope import RotaryEmbedding, rotate
from kvtide_worker.models.weights import WeightLoader, loaded_bytes


@dataclass(frozen=True)
class Gemma3Layer:
    """One layer's weights, [out, in]. What reads the same input is one matrix: q, k, v, and gate, up.

    Norms are held as 1 + weight in float32, which is what they multiply by. heads_norm has a row for each query head
    and each KV head.
    """

    attention_norm: torch.Tensor
    qkv: torch.Tensor
    heads_norm: torch.Tensor
    attention_out: torch.Tensor
    attention_out_norm: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    mlp_out_norm: torch.Tensor


class Gemma3Model:
    """RMSNorm around and within attention, two RoPEs, grouped-query attention with windows, GELU gates."""

    def __init__(self, checkpoint: Checkpoint, *, dtype: torch.dtype, device: torch.device) -> None:
        self.config: ModelConfig = checkpoint.config
        load = WeightLoader(checkpoint, dtype, device).load

        def load_norm(name: str) -> torch.Tensor:
            return 1.0 + load(name).float()

        self._embedding = load("model.embed_tokens")
        self._lm_head = self._embedding if self.config.tied_embeddings else load("lm_head")
        # transformers multiplies by a tensor of the weights' dtype: sqrt(640) = 25.298 is 25.25 in bfloat16.
        self._embedding_scale = torch.tensor(self.config.hidden_size**0.5).to(dtype).item()
        self._layers = []
        for prefix in (f"model.layers.{index}" for index in range(self.config.num_layers)):
            query_norm, key_norm = (load_norm(f"{prefix}.self_attn.{part}_norm") for part in "qk")
            heads_norm = [query_norm] * self.config.query_heads + [key_norm] * self.config.kv_heads
            self._layers.append(
                Gemma3Layer(
                    attention_norm=load_norm(f"{prefix}.input_layernorm"),
                    qkv=load(*(f"{prefix}.self_attn.{part}_proj" for part in "qkv")),
                    heads_norm=torch.stack(heads_norm),
                    attention_out=load(f"{prefix}.self_attn.o_proj"),
                    attention_out_norm=load_norm(f"{prefix}.post_attention_layernorm"),
                    mlp_norm=load_norm(f"{prefix}.pre_feedforward_layernorm"),
                    gate_up=load(f"{prefix}.mlp.gate_proj", f"{prefix}.mlp.up_proj"),
                    down=load(f"{prefix}.mlp.down_proj"),
                    mlp_out_norm=load_norm(f"{prefix}.post_feedforward_layernorm"),
                )
            )
        self._norm = load_norm("model.norm")
        self._ropes = {
            rope: RotaryEmbedding(head_dim=self.config.head_dim, rope=rope, dtype=dtype, device=device)
            for rope in (self.config.rope, self.config.window_rope)
            if rope is not None
        }

    @property
    def weights_bytes(self) -> int:
        """As `Model.weights_bytes`."""
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
        hidden = embedding(token_ids, self._embedding) * self._embedding_scale
        for index, layer in enumerate(self._layers):
            window = self.config.windows[index]
            rope = self.config.rope if window is None else self.config.window_rope
            assert rope is not None, "a layer with a window has its own RoPE"
            hidden = hidden + self._rms_norm(
                self._attend(index, layer, hidden, rotations[rope], attention), layer.attention_out_norm
            )
            hidden = hidden + self._rms_norm(self._mlp(layer, hidden), layer.mlp_out_norm)
        return project(self._rms_norm(hidden[logit_rows], self._norm), self._lm_head)

    def _attend(
        self,
        index: int,
        layer: Gemma3Layer,
        hidden: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        attention: AttentionStep,
    ) -> torch.Tensor:
        query_heads, kv_heads, head_dim = self.config.query_heads, self.config.kv_heads, self.config.head_dim
        heads = project(self._rms_norm(hidden, layer.attention_norm), layer.qkv)
        heads = heads.view(-1, query_heads + 2 * kv_heads, head_dim)
        rotated = rotate(self._rms_norm(heads[:, : query_heads + kv_heads], layer.heads_norm), *rotation)
        attended = attention.run(
            index,
            query=rotated[:, :query_heads],
            key=rotated[:, query_heads:],
            value=heads[:, query_heads + kv_heads :],
        )
        return project(attended.flatten(1), layer.attention_out)

    def _mlp(self, layer: Gemma3Layer, hidden: torch.Tensor) -> torch.Tensor:
        gate, up = project(self._rms_norm(hidden, layer.mlp_norm), layer.gate_up).chunk(2, dim=-1)
        return project(gelu(gate, approximate="tanh") * up, layer.down)

    def _rms_norm(self, hidden: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return (normalise(hidden, self.config.rms_norm_eps) * scale).to(hidden.dtype)
