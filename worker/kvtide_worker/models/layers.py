"""A decoder's layers in plain torch. Everything rounds where transformers rounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn.functional import gelu, silu

from kvtide_kernels.cpu.layers import Gate
from kvtide_worker.models.config import ModelConfig
from kvtide_worker.models.matrix import Matrix
from kvtide_worker.models.rope import Rotation, rotate


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


@dataclass(frozen=True)
class _TorchLayer:
    """A layer's weights as they are kept: as `DecoderLayer`, a bias within its matrix."""

    attention_norm: torch.Tensor
    qkv: Matrix
    attention_out: Matrix
    mlp_norm: torch.Tensor
    gate_up: Matrix
    down: Matrix
    heads_norm: torch.Tensor | None
    attention_out_norm: torch.Tensor | None
    mlp_out_norm: torch.Tensor | None


class TorchLayers:
    """Layers one after another, on any device and in any dtype: `Layers` of choice.py.

    keep: what makes a matrix of a weight and a bias
    """

    def __init__(
        self, config: ModelConfig, gate: Gate, keep: Callable[[torch.Tensor, torch.Tensor | None], Matrix]
    ) -> None:
        self.config, self.gate = config, gate
        self.layers: list[_TorchLayer] = []
        self._keep = keep
        self._head: tuple[torch.Tensor, Matrix] | None = None

    @property
    def nbytes(self) -> int:
        """As `Layers.nbytes`."""
        kept = [each for layer in self.layers for each in vars(layer).values() if each is not None]
        return sum(each.nbytes for each in (*kept, *(self._head or ())))

    def add(self, layer: DecoderLayer) -> None:
        """As `Layers.add`."""
        self.layers.append(
            _TorchLayer(
                attention_norm=layer.attention_norm,
                qkv=self._keep(layer.qkv, layer.qkv_bias),
                attention_out=self._keep(layer.attention_out, None),
                mlp_norm=layer.mlp_norm,
                gate_up=self._keep(layer.gate_up, None),
                down=self._keep(layer.down, None),
                heads_norm=layer.heads_norm,
                attention_out_norm=layer.attention_out_norm,
                mlp_out_norm=layer.mlp_out_norm,
            )
        )

    def set_head(self, norm: torch.Tensor, weight: torch.Tensor) -> None:
        """As `Layers.set_head`."""
        self._head = norm, self._keep(weight, None)

    def head_rows(self, token_ids: torch.Tensor) -> torch.Tensor:
        """As `Layers.head_rows`."""
        assert self._head is not None
        return self._head[1].rows(token_ids)

    def begin(self, hidden: torch.Tensor) -> TorchLayersStep:
        """As `Layers.begin`."""
        return TorchLayersStep(self, hidden)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """As `Layers.logits`."""
        assert self._head is not None
        norm, weight = self._head
        return weight.multiply(rms_norm(hidden, norm, self.config.rms_norm_eps))


class TorchLayersStep:
    """A step's residual on its way: `LayersStep` of choice.py."""

    def __init__(self, layers: TorchLayers, hidden: torch.Tensor) -> None:
        self.hidden = hidden
        self._layers, self._config = layers, layers.config

    def before_attention(self, index: int, rotation: Rotation) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """As `LayersStep.before_attention`."""
        config, layer = self._config, self._layers.layers[index]
        query_heads, rotated_heads = config.query_heads, config.query_heads + config.kv_heads
        heads = layer.qkv.multiply(self._norm(self.hidden, layer.attention_norm))
        heads = heads.view(-1, rotated_heads + config.kv_heads, config.head_dim)
        rotated = rotate(self._norm(heads[:, :rotated_heads], layer.heads_norm), *rotation)
        return rotated[:, :query_heads], rotated[:, query_heads:], heads[:, rotated_heads:]

    def after_attention(self, index: int, attended: torch.Tensor) -> None:
        """As `LayersStep.after_attention`."""
        layer = self._layers.layers[index]
        self.hidden = self.hidden + self._norm(
            layer.attention_out.multiply(attended.flatten(1)), layer.attention_out_norm
        )
        # What was attended to does not live beside the MLP.
        del attended
        gate, up = layer.gate_up.multiply(self._norm(self.hidden, layer.mlp_norm)).chunk(2, dim=-1)
        self.hidden = self.hidden + self._norm(layer.down.multiply(self._activate(gate) * up), layer.mlp_out_norm)

    def _activate(self, gate: torch.Tensor) -> torch.Tensor:
        return silu(gate) if self._layers.gate == "silu" else gelu(gate, approximate="tanh")

    def _norm(self, rows: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
        return rows if scale is None else rms_norm(rows, scale, self._config.rms_norm_eps)


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
