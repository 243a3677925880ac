"""Matrices as the CPU's kernels read them, in order (src/linear.h), and their products with rows of bfloat16."""

from __future__ import annotations

import ctypes

import torch

from kvtide_kernels.cpu.library import Library

# Outputs that lie together.
PANEL = 32

# Elements that are packed at a time, beside the matrix: 8 MiB in float32.
_CHUNK_ELEMENTS = 1 << 21

_LARGEST = 127


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
        _check(weight)
        outputs, inputs = weight.shape
        packed = _padded(weight).view(-1, PANEL * inputs)
        for panels in packed.split(_panels_at_once(inputs)):
            pairs = panels.view(-1, PANEL, inputs // 2, 2)
            panels.copy_(pairs.transpose(1, 2).reshape(panels.shape))
        return cls(packed, outputs, inputs, None, bias)

    @classmethod
    def int8(cls, weight: torch.Tensor, bias: torch.Tensor | None = None) -> PackedMatrix:
        """As `bf16`, rounded to a sign and 127 steps: an output's largest weight is 127 of its scale."""
        _check(weight)
        outputs, inputs = weight.shape
        padded = _padded(weight).view(-1, PANEL * inputs)
        packed = torch.empty(padded.shape, dtype=torch.uint8)
        scales = torch.empty(len(padded) * PANEL)
        parts = (each.split(_panels_at_once(inputs)) for each in (padded, packed, scales.view(-1, PANEL)))
        for panels, to, steps in zip(*parts, strict=True):
            rows = panels.view(-1, PANEL, inputs).float()
            steps.copy_(rows.abs().amax(-1) / _LARGEST)
            # A row of zeros stays one.
            levels = (rows / steps.clamp(min=torch.finfo(torch.float32).tiny)[..., None]).round()
            levels = levels.abs().to(torch.uint8) | (levels < 0).to(torch.uint8) << 7
            # [panel, half, lane, place, pair, element] to the order of src/linear.h.
            to.copy_(levels.view(-1, 2, 4, 4, inputs // 2, 2).permute(0, 4, 2, 1, 3, 5).reshape(to.shape))
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
        half, lane, place = output // 16, output // 4 % 4, output % 4
        pairs = self._packed.view(torch.int16).view(-1, self.inputs // 2, 4, 2, 4)
        levels = pairs[panel, :, lane, half, place].view(torch.uint8)
        sizes = (levels & _LARGEST).float().where(levels <= _LARGEST, -(levels & _LARGEST).float())
        return (sizes * self._scales[indices][:, None]).bfloat16()

    def multiply(self, rows: torch.Tensor, kernels: Library, norm: Norm | None = None) -> torch.Tensor:
        """rows bfloat16 [rows, inputs], contiguous, times the matrix, plus the bias: bfloat16 [rows, outputs].

        norm: what the rows go through before
        """
        normed = None if norm is None else torch.empty_like(rows)
        out = rows.new_empty(len(rows), self.outputs)
        kernels.in_threads(
            "kvtide_linear",
            ctypes.byref(self.structure),
            None if norm is None else ctypes.byref(norm),
            ctypes.c_void_p(rows.data_ptr()),
            ctypes.c_int64(len(rows)),
            ctypes.c_void_p(_address(normed)),
            ctypes.c_void_p(out.data_ptr()),
            threads=torch.get_num_threads(),
        )
        return out


def _address(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _check(weight: torch.Tensor) -> None:
    if weight.dtype != torch.bfloat16 or weight.shape[1] % 2:
        raise ValueError(
            f"the CPU's kernels multiply by matrices of torch.bfloat16 with an even number of inputs, but this one is "
            f"{weight.dtype} {list(weight.shape)}"
        )


def _padded(weight: torch.Tensor) -> torch.Tensor:
    """The matrix itself, or with rows of zeros behind it."""
    lacking = -len(weight) % PANEL
    return torch.cat([weight, weight.new_zeros(lacking, weight.shape[1])]) if lacking else weight.contiguous()


def _panels_at_once(inputs: int) -> int:
    return max(1, _CHUNK_ELEMENTS // (PANEL * inputs))
