"""Matrices as plain torch multiplies with them, on any device and in any dtype."""

from __future__ import annotations

import torch
from torch.nn.functional import embedding, linear

from kvtide_sizing.memory.matrices import CPU_DEQUANTISED_ELEMENTS, GPU_DEQUANTISED_ELEMENTS, dequantised_rows
from kvtide_worker.models.chunks import row_chunks

_LARGEST = 127


class Matrix:
    """A matrix [outputs, inputs], and what is added to its outputs.

    weight: in dtype, which the rows have that it is multiplied with; or in int8, with float32 scales [outputs]
    """

    def __init__(
        self, weight: torch.Tensor, scales: torch.Tensor | None, bias: torch.Tensor | None, dtype: torch.dtype
    ) -> None:
        self._weight, self._scales, self._bias, self._dtype = weight, scales, bias, dtype

    @classmethod
    def plain(cls, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Matrix:
        """The weight [outputs, inputs] as it is; bias [outputs]."""
        return cls(weight, None, bias, weight.dtype)

    @classmethod
    def int8(cls, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Matrix:
        """As `plain`, rounded as the CPU's kernels round: an output's largest weight is 127 of its scale."""
        levels = torch.empty_like(weight, dtype=torch.int8)
        scales = torch.empty(len(weight), dtype=torch.float32, device=weight.device)
        for rows in row_chunks(tuple(weight.shape)):
            wide = weight[rows].float()
            scales[rows] = wide.abs().amax(-1) / _LARGEST
            # A row of zeros stays one.
            steps = scales[rows].clamp(min=torch.finfo(torch.float32).tiny)
            levels[rows] = (wide / steps[:, None]).round().to(torch.int8)
        return cls(levels, scales, bias, weight.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of what is kept."""
        return sum(kept.nbytes for kept in (self._weight, self._scales, self._bias) if kept is not None)

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        """The rows [len(indices), inputs] of the matrix: what an embedding looks up."""
        rows = embedding(indices, self._weight)
        return rows if self._scales is None else (rows * self._scales[indices][:, None]).to(self._dtype)

    def multiply(self, rows: torch.Tensor) -> torch.Tensor:
        """rows [tokens, inputs] times the matrix, plus the bias: [tokens, outputs].

        A single row takes another path through the CPU's BLAS, which sums in another order. With two at least, a
        bfloat16 row gives the same result whoever shares the step with it; it costs a lone sequence a tenth of its
        speed.
        """
        if rows.shape[0] == 1:
            return self._multiply(rows.expand(2, -1))[:1]
        return self._multiply(rows)

    def _multiply(self, rows: torch.Tensor) -> torch.Tensor:
        if self._scales is None:
            return linear(rows, self._weight, self._bias)
        out = rows.new_empty(len(rows), len(self._weight))
        elements = GPU_DEQUANTISED_ELEMENTS if rows.is_cuda else CPU_DEQUANTISED_ELEMENTS
        each = dequantised_rows((len(self._weight), self._weight.shape[1]), elements)
        for levels, scales, part in zip(
            self._weight.split(each), self._scales.split(each), out.split(each, dim=1), strict=True
        ):
            # All levels are whole numbers up to 127, which bfloat16 has exactly.
            torch.mul(linear(rows, levels.to(rows.dtype)), scales, out=part)
        return out if self._bias is None else out.add_(self._bias)
