"""The Walsh-Hadamard transform: it spreads what one element has over all of them, and is its own inverse."""

from __future__ import annotations

import math

import torch


def run_length(dim: int) -> int:
    """How many elements are transformed together: the largest power of two that divides dim.

    80 = 5 · 16, 96 = 3 · 32, 112 = 7 · 16, 192 = 3 · 64; all of a power of two; 1 of an odd one, which changes nothing.
    """
    return dim & -dim


def hadamard_matrix(dim: int) -> torch.Tensor:
    """Sylvester's matrix of run_length(dim), divided by its root, along the diagonal: float32 [dim, dim].

    Symmetric and orthogonal. H(2n) = [[H(n), H(n)], [H(n), -H(n)]], H(1) = [1].
    """
    run = run_length(dim)
    block = torch.ones(1, 1)
    while block.shape[0] < run:
        block = torch.cat([torch.cat([block, block], 1), torch.cat([block, -block], 1)])
    return torch.kron(torch.eye(dim // run), block / math.sqrt(run))


def hadamard(x: torch.Tensor) -> torch.Tensor:
    """x @ hadamard_matrix(dim) of [..., dim], in float32 and in dim · log2(run_length(dim)) additions."""
    run = run_length(x.shape[-1])
    whole = x.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
    half = 1
    while half < run:
        first, second = whole.view(-1, 2, half).unbind(1)
        difference = first - second
        first += second
        second.copy_(difference)
        half *= 2
    return whole.div_(math.sqrt(run))
