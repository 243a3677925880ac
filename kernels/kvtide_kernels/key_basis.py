"""The basis that a layer's keys are stored in, so that few bits cost its scores least.

A score is q · k. For any invertible M and any c it is (q M^-1) · M (k - c) as well, but for q · c, which is the same
for all keys of a query: the softmax does not see it. Keys are transformed behind RoPE and queries with them, and
whatever follows, kernels and formats alike, knows nothing of it.

Rounding adds an error of about s to each element of M (k - c), and s grows with the vector's length; the error of the
score is s · |q M^-1|. Over queries and keys with the moments Q and K the mean of its square goes with

    trace(M K M') · trace(M'^-1 Q M^-1)     least where  M'M = K^-1/2 (K^1/2 Q K^1/2)^1/2 K^-1/2

(the geometric mean of K^-1 and Q), and where no element stands out, which one more orthogonal matrix sees to.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from kvtide_kernels.attention import seen_in_text

# Of the mean variance, added to each direction: what no calibration text has shown is not taken to be nothing.
_UNSEEN = 1e-3


@dataclass(frozen=True)
class KeyBasis:
    """One layer's: of_key [kv_heads, head_dim, head_dim] is M', of_query M^-1, centre [kv_heads, head_dim] is c.

    In float32: with bfloat16 the two would no longer be each other's inverse.
    """

    of_key: torch.Tensor
    of_query: torch.Tensor
    centre: torch.Tensor

    def keys(self, key: torch.Tensor) -> torch.Tensor:
        """Keys [tokens, kv_heads, head_dim] in this basis, in their own dtype."""
        turned = torch.einsum("thd,hde->the", (key - self.centre).to(self.of_key.dtype), self.of_key)
        return turned.to(key.dtype)

    def queries(self, query: torch.Tensor) -> torch.Tensor:
        """Queries [tokens, query_heads, head_dim] for keys in this basis, in their own dtype."""
        grouped = query.view(len(query), len(self.of_query), -1, query.shape[-1]).to(self.of_query.dtype)
        return torch.einsum("thgd,hde->thge", grouped, self.of_query).reshape(query.shape).to(query.dtype)


def fit_key_basis(
    query: torch.Tensor, key: torch.Tensor, *, scale: float, window: int | None, centred: bool
) -> KeyBasis:
    """The basis for heads like these, of one text's tokens in order, behind RoPE; float32.

    query [tokens, query_heads, head_dim], key [tokens, kv_heads, head_dim]; scale and window as in attention.
    centred: False where the softmax does see a constant, as with soft-capping and sinks.
    """
    tokens, kv_heads, dim = key.shape
    hidden = ~seen_in_text(tokens, window, key.device)
    heads = [
        _fit_head(heads_query.float(), head_key.float(), scale, hidden, centred)
        for heads_query, head_key in zip(query.view(tokens, kv_heads, -1, dim).unbind(1), key.unbind(1), strict=True)
    ]
    of_key, of_query, centre = (torch.stack(parts).float() for parts in zip(*heads, strict=True))
    return KeyBasis(of_key.contiguous(), of_query.contiguous(), centre)


def _fit_head(
    query: torch.Tensor, key: torch.Tensor, scale: float, hidden: torch.Tensor, centred: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """M', M^-1 and c of one KV head: query [tokens, group, dim], key [tokens, dim]."""
    of_keys, of_queries = torch.zeros_like(key[:, 0]), torch.zeros_like(query[..., 0])
    # A head at a time: a group of 32 would take gigabytes of scores.
    for head in range(query.shape[1]):
        weights = (query[:, head] @ key.T * scale).masked_fill_(hidden, -math.inf).softmax(-1)
        # How much a probability changes with its score: an error is free where nobody looks, or where nothing else is.
        matters = weights * (1 - weights)
        of_keys += matters.sum(0)
        of_queries[:, head] = matters.sum(1)
    # Scores are many and need no more than float32; what follows is small, and inverts.
    query, key, of_keys, of_queries = query.double(), key.double(), of_keys.double(), of_queries.double()
    centre = (of_keys @ key) / of_keys.sum() if centred else torch.zeros_like(key[0])
    key_moments = _moments(key - centre, of_keys)
    query_moments = _moments(query.flatten(0, 1), of_queries.flatten())
    root, inverse_root = _power(key_moments, 0.5), _power(key_moments, -0.5)
    values, vectors = torch.linalg.eigh(inverse_root @ _power(root @ query_moments @ root, 0.5) @ inverse_root)
    lengths, spread = values.sqrt(), _spreading(len(values)).to(key.device)
    return (vectors * lengths) @ spread.T, (vectors / lengths) @ spread.T, centre


def _moments(rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    moments = (rows * weights[:, None]).T @ rows / weights.sum()
    return moments + _UNSEEN * moments.diagonal().mean() * torch.eye(len(moments), device=rows.device)


def _power(matrix: torch.Tensor, exponent: float) -> torch.Tensor:
    values, vectors = torch.linalg.eigh(matrix)
    powers = values.clamp_min(0).pow(exponent)
    result: torch.Tensor = (vectors * powers) @ vectors.T
    return result


def _spreading(dim: int) -> torch.Tensor:
    """An orthogonal matrix without large elements, whose product with the Hadamard matrix has none either.

    Hartley's, cos + sin of 2π · ij / dim, its rows with the signs of the Rudin-Shapiro sequence.
    """
    index = torch.arange(dim)
    angle = (index[:, None] * index % dim).double() * (2 * math.pi / dim)
    signs = torch.tensor([(-1.0) ** (i & i >> 1).bit_count() for i in range(dim)], dtype=torch.float64)
    return signs[:, None] * (angle.cos() + angle.sin()) / math.sqrt(dim)
