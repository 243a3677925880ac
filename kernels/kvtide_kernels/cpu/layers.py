"""A decoder's layers on the CPU, but for their attention: two calls a layer, one for the logits (src/layers.cpp)."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Literal

import torch

from kvtide_kernels.cpu.library import Library
from kvtide_kernels.cpu.linear import Linear, Norm, PackedMatrix

# What an MLP's gates go through; GELU by tanh.
Gate = Literal["silu", "gelu_tanh"]
_GATES: dict[Gate, int] = {"silu": 0, "gelu_tanh": 1}

# What multiplies bfloat16; others are served by torch.
INSTRUCTION_SET = "avx512"


class _Layer(ctypes.Structure):
    """`DecoderLayer` of src/layers.cpp."""

    _fields_ = (
        *((name, Linear) for name in ("qkv", "attention_out", "gate_up", "down")),
        *((name, Norm) for name in ("attention_norm", "mlp_norm")),
        *((name, Norm) for name in ("heads_norm", "attention_out_norm", "mlp_out_norm")),
        ("next", ctypes.c_void_p),
        *((name, ctypes.c_int32) for name in ("query_heads", "kv_heads", "head_dim", "gate")),
    )


class _Buffers(ctypes.Structure):
    """`Buffers` of src/layers.cpp."""

    _fields_ = (
        ("rows", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("hidden", "normed", "wide", "gated")),
        *((name, ctypes.c_void_p) for name in ("query", "key", "value", "attended")),
        *((name, ctypes.c_void_p) for name in ("cos", "sin")),
        ("rotated", ctypes.c_int32),
    )


@dataclass(frozen=True)
class CpuLayer:
    """One layer's weights. Scales of norms are bfloat16 [size], and what they multiply is rounded before; or float32,
    and the product is rounded alone. What only some families have is None in the others:

    heads_norm:                        [query_heads + kv_heads, head_dim]: of each head of queries and keys
    attention_out_norm, mlp_out_norm:  of what goes back to the residual
    """

    attention_norm: torch.Tensor
    qkv: PackedMatrix
    attention_out: PackedMatrix
    mlp_norm: torch.Tensor
    gate_up: PackedMatrix
    down: PackedMatrix
    heads_norm: torch.Tensor | None = None
    attention_out_norm: torch.Tensor | None = None
    mlp_out_norm: torch.Tensor | None = None


class CpuLayers:
    """Layers one after another; epsilon: of their norms."""

    def __init__(
        self, kernels: Library, *, query_heads: int, kv_heads: int, head_dim: int, epsilon: float, gate: Gate
    ) -> None:
        self.kernels = kernels
        self.query_heads, self.kv_heads, self.head_dim = query_heads, kv_heads, head_dim
        self.layers: list[CpuLayer] = []
        self.structures: list[_Layer] = []
        self._epsilon, self._gate = epsilon, _GATES[gate]
        self._head: tuple[torch.Tensor, PackedMatrix] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all weights."""
        kept = [each for layer in self.layers for each in vars(layer).values() if each is not None]
        return sum(each.nbytes for each in (*kept, *(self._head or ())))

    def append(self, layer: CpuLayer) -> None:
        """Put a layer behind the others."""
        made = _Layer(
            *(one.structure for one in (layer.qkv, layer.attention_out, layer.gate_up, layer.down)),
            *(self._norm(scale) for scale in (layer.attention_norm, layer.mlp_norm)),
            *(self._norm(scale) for scale in (layer.heads_norm, layer.attention_out_norm, layer.mlp_out_norm)),
            None,
            self.query_heads,
            self.kv_heads,
            self.head_dim,
            self._gate,
        )
        if self.structures:
            self.structures[-1].next = ctypes.addressof(made)  # of its first field, qkv
        self.layers.append(layer)
        self.structures.append(made)

    def end(self, norm: torch.Tensor, head: PackedMatrix) -> None:
        """What makes logits of the residual behind the last layer: a norm's scale, as of `CpuLayer`, and a matrix."""
        self._head = norm, head
        self.structures[-1].next = ctypes.addressof(head.structure)

    def head_rows(self, indices: torch.Tensor) -> torch.Tensor:
        """As `PackedMatrix.rows`, of the head."""
        assert self._head is not None
        return self._head[1].rows(indices)

    def begin(self, hidden: torch.Tensor) -> CpuLayersStep:
        """A step's way through the layers, of the residual bfloat16 [rows, hidden_size], which it overwrites."""
        return CpuLayersStep(self, hidden)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """bfloat16 [rows, head's outputs] of the residual's rows, normalised."""
        assert self._head is not None
        norm, head = self._head
        return head.multiply(hidden.contiguous(), self.kernels, self._norm(norm))

    def _norm(self, scale: torch.Tensor | None) -> Norm:
        if scale is None:
            return Norm(None, 0, 0, 0.0)
        return Norm(scale.data_ptr(), scale.shape[-1], scale.dtype is torch.float32, self._epsilon)


class CpuLayersStep:
    """A step's residual. Each call takes more beside it: of rows in bfloat16 their normalised residual, and before
    attention all heads twice, behind it 3 · intermediate_size."""

    def __init__(self, layers: CpuLayers, hidden: torch.Tensor) -> None:
        self.hidden = hidden.contiguous()
        self._layers = layers
        self._threads = torch.get_num_threads()
        self._buffers = _Buffers(len(hidden), self.hidden.data_ptr())

    def before_attention(
        self, index: int, rotation: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values [rows, heads, head_dim], of rotations bfloat16 [rows, 1, size] that
        are contiguous: cosines, and sines with their sign."""
        layers, buffers, rows, (cos, sin) = self._layers, self._buffers, len(self.hidden), rotation
        normed, heads = torch.empty_like(self.hidden), self.hidden.new_empty(rows, layers.layers[index].qkv.outputs)
        query = self.hidden.new_empty(rows, layers.query_heads, layers.head_dim)
        key, value = (self.hidden.new_empty(rows, layers.kv_heads, layers.head_dim) for _ in range(2))
        buffers.normed, buffers.wide = normed.data_ptr(), heads.data_ptr()
        buffers.query, buffers.key, buffers.value = query.data_ptr(), key.data_ptr(), value.data_ptr()
        buffers.cos, buffers.sin, buffers.rotated = cos.data_ptr(), sin.data_ptr(), cos.shape[-1]
        self._run("kvtide_before_attention", index)
        return query, key, value

    def after_attention(self, index: int, attended: torch.Tensor) -> None:
        """Adds what attention gives, [rows, query_heads, head_dim], which may be overwritten, and what the MLP does, to
        the residual."""
        layer, buffers, rows = self._layers.layers[index], self._buffers, len(self.hidden)
        attended, normed = attended.contiguous(), torch.empty_like(self.hidden)
        # What goes back to the residual lies there too.
        wide = self.hidden.new_empty(rows, max(layer.gate_up.outputs, self.hidden.shape[1]))
        gated = self.hidden.new_empty(rows, layer.down.inputs)
        buffers.attended, buffers.normed = attended.data_ptr(), normed.data_ptr()
        buffers.wide, buffers.gated = wide.data_ptr(), gated.data_ptr()
        self._run("kvtide_after_attention", index)

    def _run(self, function: str, index: int) -> None:
        structure = ctypes.byref(self._layers.structures[index])
        self._layers.kernels.in_threads(function, structure, ctypes.byref(self._buffers), threads=self._threads)
