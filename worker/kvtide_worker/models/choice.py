"""What computes a decoder's layers: the CPU's kernels where they multiply its weights, and plain torch elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

import torch

from kvtide_kernels.cpu.layers import INSTRUCTION_SET, CpuLayer, CpuLayers, Gate
from kvtide_kernels.cpu.library import Library, library
from kvtide_kernels.cpu.linear import BF16_INPUTS, INT8_INPUTS, PackedMatrix
from kvtide_sizing.errors import UnsupportedPrecision
from kvtide_sizing.memory.weights import WeightFormat
from kvtide_worker.models.config import ModelConfig
from kvtide_worker.models.layers import DecoderLayer, TorchLayers
from kvtide_worker.models.matrix import Matrix
from kvtide_worker.models.rope import Rotation

_Pack = Callable[[torch.Tensor, torch.Tensor | None], PackedMatrix]
_PACKING: dict[WeightFormat, _Pack] = {WeightFormat.BF16: PackedMatrix.bf16, WeightFormat.INT8: PackedMatrix.int8}
_INPUTS = {WeightFormat.BF16: BF16_INPUTS, WeightFormat.INT8: INT8_INPUTS}
_KEEPING = {WeightFormat.BF16: Matrix.plain, WeightFormat.INT8: Matrix.int8}

logger = logging.getLogger(__name__)


class LayersStep(Protocol):
    """A step's residual on its way through the layers."""

    hidden: torch.Tensor

    def before_attention(self, index: int, rotation: Rotation) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The layer's queries, keys and values [tokens, heads, head_dim]."""
        ...

    def after_attention(self, index: int, attended: torch.Tensor) -> None:
        """Add what attention gives, [tokens, query_heads, head_dim], and what the MLP does, to `hidden`."""
        ...


class Layers(Protocol):
    """A decoder's layers and its head. Tensors that are handed over may be reordered where they lie."""

    @property
    def nbytes(self) -> int:
        """Bytes of all their weights."""
        ...

    def add(self, layer: DecoderLayer) -> None:
        """Put a layer behind the others."""
        ...

    def set_head(self, norm: torch.Tensor, weight: torch.Tensor) -> None:
        """The last norm, and the head [vocab_size, hidden_size]."""
        ...

    def head_rows(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Rows [tokens, hidden_size] of the head: the embeddings, where these are tied."""
        ...

    def begin(self, hidden: torch.Tensor) -> LayersStep:
        """A step of the residual [tokens, hidden_size], which it may overwrite."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, vocab_size] of rows of the residual behind the last layer."""
        ...


def layers_for(
    config: ModelConfig, gate: Gate, dtype: torch.dtype, device: torch.device, weights: WeightFormat
) -> Layers:
    """The fastest that there is for the model on the device. Raises UnsupportedPrecision for weights that none has."""
    if weights not in _KEEPING:
        raise UnsupportedPrecision(
            f"model.weightPrecision {weights} is not multiplied with by this worker; write {' or '.join(_KEEPING)}"
        )
    kernels = _kernels(config, dtype, device, _INPUTS[weights])
    if kernels is not None:
        return _PackedLayers(config, gate, kernels, _PACKING[weights])
    if weights is not WeightFormat.BF16:
        logger.warning("plain torch multiplies with weights in %s, of which it makes %s each time", weights, dtype)
    return TorchLayers(config, gate, _KEEPING[weights])


def _kernels(config: ModelConfig, dtype: torch.dtype, device: torch.device, multiple: int) -> Library | None:
    """Those that multiply by matrices with such a multiple of inputs."""
    inputs = (config.hidden_size, config.intermediate_size, config.query_heads * config.head_dim)
    if device.type != "cpu" or dtype is not torch.bfloat16 or any(size % multiple for size in inputs):
        return None
    try:
        found = library()
    except (RuntimeError, OSError) as error:
        logger.warning("plain torch computes the layers, slower than kernels would: %s", error)
        return None
    return found if found.instruction_set == INSTRUCTION_SET else None


class _PackedLayers(CpuLayers):
    """The kernels' layers, of weights that they take over."""

    def __init__(self, config: ModelConfig, gate: Gate, kernels: Library, pack: _Pack) -> None:
        super().__init__(
            kernels,
            query_heads=config.query_heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            epsilon=config.rms_norm_eps,
            gate=gate,
        )
        self._pack = pack

    def add(self, layer: DecoderLayer) -> None:
        """As `Layers.add`."""
        self.append(
            CpuLayer(
                attention_norm=layer.attention_norm,
                qkv=self._pack(layer.qkv, layer.qkv_bias),
                attention_out=self._pack(layer.attention_out, None),
                mlp_norm=layer.mlp_norm,
                gate_up=self._pack(layer.gate_up, None),
                down=self._pack(layer.down, None),
                heads_norm=layer.heads_norm,
                attention_out_norm=layer.attention_out_norm,
                mlp_out_norm=layer.mlp_out_norm,
            )
        )

    def set_head(self, norm: torch.Tensor, weight: torch.Tensor) -> None:
        """As `Layers.set_head`."""
        self.end(norm, self._pack(weight, None))
