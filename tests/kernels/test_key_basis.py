"""The basis of keys: it changes no attention, and what it does to INT4 is what its formula says."""

from __future__ import annotations

import pytest
import torch

from kvtide_kernels.attention import seen_in_text
from kvtide_kernels.codec import decode, encode
from kvtide_kernels.hadamard import hadamard_matrix
from kvtide_kernels.key_basis import fit_key_basis
from kvtide_kernels.reference import attend
from kvtide_sizing.formats import INT4

TOKENS, GROUP, SCALE = 200, 3, 0.05


def heads(kv_heads: int, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and keys whose channels differ by 50 in size and not alike, keys around a mean of theirs."""
    random = torch.Generator().manual_seed(dim)
    query = torch.randn(TOKENS, kv_heads * GROUP, dim, generator=random)
    key = torch.randn(TOKENS, kv_heads, dim, generator=random)
    key[..., 0] *= 50
    key[..., 1] += 80
    query[..., 1] /= 10
    query[..., 2] *= 50
    key[..., 2] /= 50
    return query, key


def attended(query: torch.Tensor, key: torch.Tensor, values: torch.Tensor, window: int | None) -> torch.Tensor:
    return attend(query, key, values, scale=SCALE, positions=torch.arange(TOKENS), window=window)


@pytest.mark.parametrize("dim", [64, 80, 96, 256])
@pytest.mark.parametrize("window", [None, 50])
def test_attention_is_what_it_was(dim: int, window: int | None) -> None:
    query, key = heads(2, dim)
    values = torch.randn(TOKENS, 2, dim, generator=torch.Generator().manual_seed(1))
    basis = fit_key_basis(query, key, seen_in_text(TOKENS, window, torch.device("cpu")), scale=SCALE, centred=True)
    expected = attended(query, key, values, window)
    got = attended(basis.queries(query), basis.keys(key), values, window)
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


def test_without_a_centre_scores_are_what_they_were() -> None:
    query, key = heads(1, 64)
    basis = fit_key_basis(query, key, seen_in_text(TOKENS, None, torch.device("cpu")), scale=SCALE, centred=False)
    assert not basis.centre.any()
    scores = torch.einsum("qhd,kd->qhk", basis.queries(query), basis.keys(key)[:, 0])
    torch.testing.assert_close(scores, torch.einsum("qhd,kd->qhk", query, key[:, 0]), atol=1e-2, rtol=1e-4)


def test_each_kv_head_has_its_own() -> None:
    query, key = heads(2, 64)
    both = fit_key_basis(query, key, seen_in_text(TOKENS, None, torch.device("cpu")), scale=SCALE, centred=True)
    for head in range(2):
        own = fit_key_basis(
            query[:, head * GROUP : (head + 1) * GROUP],
            key[:, head : head + 1],
            seen_in_text(TOKENS, None, torch.device("cpu")),
            scale=SCALE,
            centred=True,
        )
        torch.testing.assert_close(own.of_key[0], both.of_key[head])
        torch.testing.assert_close(own.of_query[0], both.of_query[head])


@pytest.mark.parametrize("dim", [64, 80, 128])
def test_no_element_stands_out_before_and_behind_the_rotation(dim: int) -> None:
    query, key = heads(1, dim)
    basis = fit_key_basis(query, key, seen_in_text(TOKENS, None, torch.device("cpu")), scale=SCALE, centred=True)
    for turned in (basis.keys(key)[:, 0], basis.keys(key)[:, 0] @ hadamard_matrix(dim)):
        sizes = turned.square().mean(0).sqrt()
        # Before, sizes are from 1/50 to 80.
        assert sizes.max() < 2 * sizes.mean()


def test_int4_scores_are_nearer() -> None:
    query, key = heads(1, 64)
    basis = fit_key_basis(query, key, seen_in_text(TOKENS, None, torch.device("cpu")), scale=SCALE, centred=True)

    def error(own_query: torch.Tensor, own_key: torch.Tensor) -> float:
        off = decode(INT4, encode(INT4, own_key), 64) - own_key
        return float(torch.einsum("qhd,kd->qhk", own_query, off[:, 0]).square().mean())

    # Plain, an error is of the size of the largest channels, 50 and 80, and is multiplied by the queries' 50. Balanced,
    # the channel that queries multiply by 50 is small in keys to begin with.
    assert error(basis.queries(query), basis.keys(key)) < error(query, key) / 20
