"""Matrices as the CPU's kernels read them, in order (src/linear.h), and their products with rows of bfloat16.

Those in INT8 are rotated, and so are the rows that they are multiplied with, which changes no product: no element
stands out any more, and a row rounded to 127 steps of its own costs less than rounding weights that are not rotated.
Products are of bytes then, exact, and twice as many at a time as of bfloat16 (docs/kernels.md has what that costs).
"""

from __future__ import annotations

import ctypes

import torch

from kvtide_kernels.cpu.library import Library
from kvtide_kernels.hadamard import hadamard

# Outputs that lie together.
PANEL = 32

# Elements that are packed at a time, beside the matrix: 8 MiB in float32.
_CHUNK_ELEMENTS = 1 << 21

_LARGEST = 127
# What makes weights of one sign, as the instruction wants them.
_OFFSET = 128

# Inputs come in multiples of so many; a rotation needs them too.
BF16_INPUTS, INT8_INPUTS = 2, 16


class Linear(ctypes.Structure):
    """A packed matrix: `Linear` of src/linear.h."""

    _fields_ = (
        ("weights", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("inputs", ctypes.c_int32),
        ("outputs", ctypes.c_int32),
    )


class Norm(ctypes.Structure):
    """How rows are normalised: `Norm` of src/rows.h."""

    _fields_ = (
        ("scale", ctypes.c_void_p),
        ("size", ctypes.c_int32),
        ("once", ctypes.c_int32),
        ("epsilon", ctypes.c_float),
    )


class PackedMatrix:
    """A matrix [outputs, inputs] in BF16 or, with a scale for each output, in INT8; and what is added to its outputs.

    A row's product is the same whichever rows share the call, and however many.
    """

    def __init__(
        self, packed: torch.Tensor, outputs: int, inputs: int, scales: torch.Tensor | None, bias: torch.Tensor | None
    ) -> None:
        self._packed, self._scales, self._bias = packed, scales, bias
        self.outputs, self.inputs = outputs, inputs
        self.structure = Linear(packed.data_ptr(), _address(scales), _address(bias), inputs, outputs)

    @classmethod
    def bf16(cls, weight: torch.Tensor, bias: torch.Tensor | None = None) -> PackedMatrix:
        """Pack weight bfloat16 [outputs, inputs] where it lies, which is worth nothing afterwards; bias [outputs].

        There is a second copy only where the outputs are no multiple of PANEL. Raises ValueError for an odd number of
        inputs, and for another dtype.
        """
        _check(weight, BF16_INPUTS)
        outputs, inputs = weight.shape
        packed = _padded(weight).view(-1, PANEL * inputs)
        for panels in packed.split(_panels_at_once(inputs)):
            pairs = panels.view(-1, PANEL, inputs // 2, 2)
            panels.copy_(pairs.transpose(1, 2).reshape(panels.shape))
        return cls(packed, outputs, inputs, None, bias)

    @classmethod
    def int8(cls, weight: torch.Tensor, bias: torch.Tensor | None = None) -> PackedMatrix:
        """As `bf16`, of a multiple of INT8_INPUTS, rotated and rounded to a sign and 127 steps: an output's largest
        weight is 127 of its scale."""
        _check(weight, INT8_INPUTS)
        outputs, inputs = weight.shape
        padded = _padded(weight).view(-1, PANEL * inputs)
        packed = torch.empty(padded.shape, dtype=torch.uint8)
        scales = torch.empty(len(padded) * PANEL)
        parts = (each.split(_panels_at_once(inputs)) for each in (padded, packed, scales.view(-1, PANEL)))
        for panels, to, steps in zip(*parts, strict=True):
            rows = hadamard(panels.view(-1, PANEL, inputs))
            steps.copy_(rows.abs().amax(-1) / _LARGEST)
            # A row of zeros stays one.
            rows /= steps.clamp(min=torch.finfo(torch.float32).tiny)[..., None]
            levels = rows.round_().add_(_OFFSET).to(torch.uint8)
            to.copy_(levels.view(-1, PANEL, inputs // 4, 4).transpose(1, 2).reshape(to.shape))
        return cls(packed, outputs, inputs, scales, bias)

    @property
    def nbytes(self) -> int:
        """Bytes of what is kept."""
        return sum(kept.nbytes for kept in (self._packed, self._scales, self._bias) if kept is not None)

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        """The rows bfloat16 [len(indices), inputs] of the matrix, indices int64: what an embedding looks up."""
        panel, output = indices // PANEL, indices % PANEL
        if self._scales is None:
            pairs = self._packed.view(torch.int32).view(-1, self.inputs // 2, PANEL)
            return pairs[panel, :, output].view(torch.bfloat16)
        fours = self._packed.view(torch.int32).view(-1, self.inputs // 4, PANEL)
        levels = fours[panel, :, output].view(torch.uint8).float() - _OFFSET
        return hadamard(levels * self._scales[indices][:, None]).bfloat16()

    def multiply(self, rows: torch.Tensor, kernels: Library, norm: Norm | None = None) -> torch.Tensor:
        """rows bfloat16 [rows, inputs], contiguous, times the matrix, plus the bias: bfloat16 [rows, outputs].

        norm: what the rows go through before
        """
        taken = None if norm is None and self._scales is None else torch.empty_like(rows)
        out = rows.new_empty(len(rows), self.outputs)
        kernels.in_threads(
            "kvtide_linear",
            ctypes.byref(self.structure),
            None if norm is None else ctypes.byref(norm),
            ctypes.c_void_p(rows.data_ptr()),
            ctypes.c_int64(len(rows)),
            ctypes.c_void_p(_address(taken)),
            ctypes.c_void_p(out.data_ptr()),
            threads=torch.get_num_threads(),
        )
        return out


def _address(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _check(weight: torch.Tensor, multiple: int) -> None:
    if weight.dtype != torch.bfloat16 or weight.shape[1] % multiple:
        raise ValueError(
            f"the CPU's kernels multiply by matrices of torch.bfloat16 with a multiple of {multiple} inputs, but this "
            f"one is {weight.dtype} {list(weight.shape)}"
        )


def _padded(weight: torch.Tensor) -> torch.Tensor:
    """The matrix itself, or with rows of zeros behind it."""
    lacking = -len(weight) % PANEL
    return torch.cat([weight, weight.new_zeros(lacking, weight.shape[1])]) if lacking else weight.contiguous()


def _panels_at_once(inputs: int) -> int:
    return max(1, _CHUNK_ELEMENTS // (PANEL * inputs))
