"""A decoder's layers in plain torch. Everything rounds where transformers rounds."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import embedding, gelu, linear, silu

from kvtide_kernels.cpu.layers import Gate
from kvtide_worker.models.config import ModelConfig
from kvtide_worker.models.rope import Rotation, rotate
from kvtide_worker.models.weights import loaded_bytes


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


class TorchLayers:
    """Layers one after another, on any device and in any dtype: `Layers` of choice.py."""

    def __init__(self, config: ModelConfig, gate: Gate) -> None:
        self.config, self.gate = config, gate
        self.layers: list[DecoderLayer] = []
        self._head: tuple[torch.Tensor, torch.Tensor] | None = None

    @property
    def nbytes(self) -> int:
        """As `Layers.nbytes`."""
        return loaded_bytes(self._head or (), self.layers)

    def add(self, layer: DecoderLayer) -> None:
        """As `Layers.add`."""
        self.layers.append(layer)

    def set_head(self, norm: torch.Tensor, weight: torch.Tensor) -> None:
        """As `Layers.set_head`."""
        self._head = norm, weight

    def head_rows(self, token_ids: torch.Tensor) -> torch.Tensor:
        """As `Layers.head_rows`."""
        assert self._head is not None
        return embedding(token_ids, self._head[1])

    def begin(self, hidden: torch.Tensor) -> TorchLayersStep:
        """As `Layers.begin`."""
        return TorchLayersStep(self, hidden)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """As `Layers.logits`."""
        assert self._head is not None
        norm, weight = self._head
        return project(rms_norm(hidden, norm, self.config.rms_norm_eps), weight)


class TorchLayersStep:
    """A step's residual on its way: `LayersStep` of choice.py."""

    def __init__(self, layers: TorchLayers, hidden: torch.Tensor) -> None:
        self.hidden = hidden
        self._layers, self._config = layers, layers.config

    def before_attention(self, index: int, rotation: Rotation) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """As `LayersStep.before_attention`."""
        config, layer = self._config, self._layers.layers[index]
        query_heads, rotated_heads = config.query_heads, config.query_heads + config.kv_heads
        heads = project(self._norm(self.hidden, layer.attention_norm), layer.qkv, layer.qkv_bias)
        heads = heads.view(-1, rotated_heads + config.kv_heads, config.head_dim)
        rotated = rotate(self._norm(heads[:, :rotated_heads], layer.heads_norm), *rotation)
        return rotated[:, :query_heads], rotated[:, query_heads:], heads[:, rotated_heads:]

    def after_attention(self, index: int, attended: torch.Tensor) -> None:
        """As `LayersStep.after_attention`."""
        layer = self._layers.layers[index]
        self.hidden = self.hidden + self._norm(
            project(attended.flatten(1), layer.attention_out), layer.attention_out_norm
        )
        # What was attended to does not live beside the MLP.
        del attended
        gate, up = project(self._norm(self.hidden, layer.mlp_norm), layer.gate_up).chunk(2, dim=-1)
        self.hidden = self.hidden + self._norm(project(self._activate(gate) * up, layer.down), layer.mlp_out_norm)

    def _activate(self, gate: torch.Tensor) -> torch.Tensor:
        return silu(gate) if self._layers.gate == "silu" else gelu(gate, approximate="tanh")

    def _norm(self, rows: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
        return rows if scale is None else rms_norm(rows, scale, self._config.rms_norm_eps)


def project(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """rows [tokens, in] times weight [out, in], plus bias [out].

    A single row takes another path through the CPU's BLAS, which sums in another order. With two at least, a
    bfloat16 row gives the same result whoever shares the step with it; it costs a lone sequence a tenth of its speed.
    """
    if rows.shape[0] == 1:
        return linear(rows.expand(2, -1), weight, bias)[:1]
    return linear(rows, weight, bias)


def rms_norm(rows: torch.Tensor, scale: torch.Tensor, epsilon: float) -> torch.Tensor:
    """rows [..., size] over their root mean square, times scale [size] or [..., size].

    With a scale of the rows' dtype it is rounded before the product too, as Llama has it; with one in float32 at the
    end alone, as Gemma has it.
    """
    return (scale * _normalise(rows, epsilon).to(scale.dtype)).to(rows.dtype)


def _normalise(rows: torch.Tensor, epsilon: float) -> torch.Tensor:
    """In float32."""
    wide = rows.float()
    return wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)
