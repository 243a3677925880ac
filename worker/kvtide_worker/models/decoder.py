"""A decoder's forward pass over a flat batch of tokens: what families share, and the few places where they differ."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch.nn.functional import embedding

from kvtide_kernels.attention import AttentionStep
from kvtide_kernels.cpu.layers import Gate
from kvtide_sizing.memory.weights import WeightFormat
from kvtide_worker.models.checkpoint import Checkpoint
from kvtide_worker.models.choice import layers_for
from kvtide_worker.models.config import ModelConfig
from kvtide_worker.models.layers import DecoderLayer
from kvtide_worker.models.rope import RotaryEmbedding
from kvtide_worker.models.weights import WeightLoader


class Decoder:
    """RMSNorm, RoPE, grouped-query attention and gated MLPs, as Llama has them. It rounds where transformers rounds.

    A family's class says what it has otherwise: names of tensors, further weights of a layer, how embeddings and norms
    scale, what its gates go through.

    context_tokens: the longest sequence that is served
    weight_format:  of the matrices; INT8 has the head in it too, and tied embeddings with it
    """

    # The parts of a layer's merged matrices, by Hugging Face's names.
    QKV: ClassVar[tuple[str, ...]] = ("q_proj", "k_proj", "v_proj")
    GATE_UP: ClassVar[tuple[str, ...]] = ("gate_proj", "up_proj")

    GATE: ClassVar[Gate] = "silu"

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        context_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
        weight_format: WeightFormat,
    ) -> None:
        self.config: ModelConfig = checkpoint.config
        self._layers = layers_for(self.config, self.GATE, dtype, device, weight_format)
        weights = WeightLoader(checkpoint, dtype, device)
        for index in range(self.config.num_layers):
            self._layers.add(self.load_layer(weights, f"model.layers.{index}"))
        # Behind the layers: a tied one may be turned into another format, and there is least beside it now.
        table = weights.load("model.embed_tokens")
        self._embedding = None if self.config.tied_embeddings else table
        head = table if self.config.tied_embeddings else weights.load("lm_head")
        self._layers.set_head(self.load_norm(weights, "model.norm"), head)
        self._ropes = {
            rope: RotaryEmbedding(rope, context_tokens=context_tokens, dtype=dtype, device=device)
            for rope in (self.config.rope, self.config.window_rope)
            if rope is not None
        }

    @property
    def weights_bytes(self) -> int:
        """Bytes of all weights; tied ones count once."""
        return self._layers.nbytes + (0 if self._embedding is None else self._embedding.nbytes)

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
        step = self._layers.begin(self.embed(token_ids))
        for index in range(self.config.num_layers):
            rotation = rotations[self.config.rope_of(index)]
            # Unnamed, none of these lives beside the MLP.
            step.after_attention(index, attention.run(index, *step.before_attention(index, rotation)))
        hidden = step.hidden[logit_rows]
        del step  # what its layers shared does not live beside the logits
        return self._layers.logits(hidden)

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
        """What `layers.rms_norm` takes as scale."""
        return weights.load(name)

    def load_heads_norm(self, weights: WeightLoader, prefix: str) -> torch.Tensor:
        """`DecoderLayer.heads_norm`, of the two norms that the heads of queries and of keys share."""
        query, key = (self.load_norm(weights, f"{prefix}.self_attn.{side}_norm") for side in "qk")
        return torch.stack([query] * self.config.query_heads + [key] * self.config.kv_heads)

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """The residual [tokens, hidden_size] before the first layer."""
        if self._embedding is None:
            return self._layers.head_rows(token_ids)
        return embedding(token_ids, self._embedding)
