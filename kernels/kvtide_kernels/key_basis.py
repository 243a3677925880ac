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

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from kvtide_sizing.memory.key_bases import SCORE_ROWS

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
    query: torch.Tensor, key: torch.Tensor, seen: torch.Tensor, *, scale: float, centred: bool
) -> KeyBasis:
    """The basis for heads like these, of one text's tokens in order, behind RoPE; float32.

    query [tokens, query_heads, head_dim], key [tokens, kv_heads, head_dim]; scale as in attention.
    seen:    what each token attends to, as of `seen_in_text`
    centred: False where the softmax does see a constant, as with soft-capping and sinks.
    """
    tokens, kv_heads, dim = key.shape
    grouped = query.view(tokens, kv_heads, -1, dim)
    heads = [
        _moments_of_head(grouped[:, head].float(), key[:, head].float(), scale, seen, centred)
        for head in range(kv_heads)
    ]
    keys, queries, centre = (torch.stack(parts) for parts in zip(*heads, strict=True))
    of_key, of_query = _basis(keys, queries)
    return KeyBasis(of_key.float().contiguous(), of_query.float().contiguous(), centre.float())


def _moments_of_head(
    query: torch.Tensor, key: torch.Tensor, scale: float, seen: torch.Tensor, centred: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The moments K and Q, and c, of one KV head, in float64: query [tokens, group, dim], key [tokens, dim]."""
    tokens, group, _ = query.shape
    of_keys, of_queries = torch.zeros_like(key[:, 0]), torch.zeros_like(query[..., 0])
    # As many scores at a time as the processor's cache holds; a group of 32 would take gigabytes at once.
    rows = max(1, SCORE_ROWS // group)
    for begin in range(0, tokens, rows):
        end = min(begin + rows, tokens)
        scores = torch.einsum("tgd,sd->gts", query[begin:end], key[:end]).mul_(scale)
        weights = scores.masked_fill_(~seen[begin:end, :end], -math.inf).softmax(-1)
        # How much a probability changes with its score: an error is free where nobody looks, or where nothing else is.
        matters = weights.addcmul_(weights, weights, value=-1)
        of_keys[:end] += matters.sum((0, 1))
        of_queries[begin:end] = matters.sum(-1).T
    # Scores are many and need no more than float32; what follows is small, and inverts.
    query, key, of_keys, of_queries = query.double(), key.double(), of_keys.double(), of_queries.double()
    centre = (of_keys @ key) / of_keys.sum() if centred else torch.zeros_like(key[0])
    return _moments(key - centre, of_keys), _moments(query.flatten(0, 1), of_queries.flatten()), centre


def _moments(rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    moments = (rows * weights[:, None]).T @ rows / weights.sum()
    return moments + _UNSEEN * moments.diagonal().mean() * torch.eye(len(moments), device=rows.device)


def _basis(keys: torch.Tensor, queries: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """M' and M^-1 of each head, of its moments K and Q [heads, dim, dim]."""
    with _one_thread():
        values, vectors = torch.linalg.eigh(keys)
        root, inverse_root = (_recomposed(values.clamp_min(0).pow(power), vectors) for power in (0.5, -0.5))
        values, vectors = torch.linalg.eigh(root @ queries @ root)
        middle = _recomposed(values.clamp_min(0).sqrt(), vectors)
        values, vectors = torch.linalg.eigh(inverse_root @ middle @ inverse_root)
    lengths, spread = values.sqrt()[:, None], _spreading(keys.shape[-1]).to(keys.device)
    return (vectors * lengths) @ spread.T, (vectors / lengths) @ spread.T


def _recomposed(values: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
    return (vectors * values[:, None]) @ vectors.mT


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Two threads take four to thirty times as long for the eigenvalues of matrices as small as a head's."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _spreading(dim: int) -> torch.Tensor:
    """An orthogonal matrix without large elements, whose product with the Hadamard matrix has none either.

    Hartley's, cos + sin of 2π · ij / dim, its rows with the signs of the Rudin-Shapiro sequence.
    """
    index = torch.arange(dim)
    angle = (index[:, None] * index % dim).double() * (2 * math.pi / dim)
    signs = torch.tensor([(-1.0) ** (i & i >> 1).bit_count() for i in range(dim)], dtype=torch.float64)
    return signs[:, None] * (angle.cos() + angle.sin()) / math.sqrt(dim)
