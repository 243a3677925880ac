"""What layers are computed with. Everything rounds where transformers rounds."""

from __future__ import annotations

import torch
from torch.nn.functional import linear


def project(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """rows [tokens, in] times weight [out, in], plus bias [out].

    A single row takes another path through the CPU's BLAS, which sums in another order. With two at least, a
    bfloat16 row gives the same result whoever shares the step with it; it costs a lone sequence a tenth of its speed.
    """
    if rows.shape[0] == 1:
        return linear(rows.expand(2, -1), weight, bias)[:1]
    return linear(rows, weight, bias)


def normalise(rows: torch.Tensor, epsilon: float) -> torch.Tensor:
    """rows [..., size] over their root mean square, in float32."""
    wide = rows.float()
    return wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)
