"""A model that reads a text for the first time attends as ever, and leaves the bases of its layers behind."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from kvtide_kernels.attention import seen_in_text
from kvtide_kernels.calibration import Calibration
from kvtide_kernels.key_basis import fit_key_basis
from kvtide_sizing.formats import BF16, INT4, INT8, LayerFormat

TOKENS, QUERY_HEADS, KV_HEADS, DIM, SCALE = 60, 6, 2, 64, 0.1
FORMATS = [LayerFormat(BF16, BF16), LayerFormat(INT8, INT4), LayerFormat(BF16, INT4), LayerFormat(INT4, INT4)]
WINDOWS = [None, 7, None, None]


def side(layer: int, heads: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(layer * 10 + heads)
    return torch.randn(TOKENS, heads, DIM, generator=random)


@pytest.mark.parametrize("layer", range(4))
def test_attention_is_torchs_own(layer: int) -> None:
    """Heads repeated, and the mask drawn: a token sees itself, what is before it, and of a window its last 7."""
    query, key, value = side(layer, QUERY_HEADS), side(layer, KV_HEADS), side(layer + 9, KV_HEADS)
    calibration = Calibration(FORMATS, windows=WINDOWS, scale=SCALE, centred=True)
    seen = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
    if layer == 1:
        seen &= ~torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril(-7)
    group = QUERY_HEADS // KV_HEADS
    expected = scaled_dot_product_attention(
        query.transpose(0, 1),
        key.repeat_interleave(group, 1).transpose(0, 1),
        value.repeat_interleave(group, 1).transpose(0, 1),
        attn_mask=seen,
        scale=SCALE,
    ).transpose(0, 1)
    torch.testing.assert_close(calibration.run(layer, query, key, value), expected, atol=1e-5, rtol=1e-5)


def test_layers_whose_keys_are_packed_have_a_basis() -> None:
    calibration = Calibration(FORMATS, windows=WINDOWS, scale=SCALE, centred=True)
    for layer in range(4):
        calibration.run(layer, side(layer, QUERY_HEADS), side(layer, KV_HEADS), side(layer + 9, KV_HEADS))
    assert sorted(calibration.bases) == [1, 3]
    for layer, basis in calibration.bases.items():
        own = fit_key_basis(
            side(layer, QUERY_HEADS),
            side(layer, KV_HEADS),
            seen_in_text(TOKENS, WINDOWS[layer], torch.device("cpu")),
            scale=SCALE,
            centred=True,
        )
        assert torch.equal(basis.of_key, own.of_key)
        assert torch.equal(basis.of_query, own.of_query)
        assert torch.equal(basis.centre, own.centre)


def test_scores_that_are_capped_keep_their_constant() -> None:
    calibration = Calibration(FORMATS, windows=WINDOWS, scale=SCALE, centred=False)
    calibration.run(3, side(3, QUERY_HEADS), side(3, KV_HEADS) + 5, side(12, KV_HEADS))
    assert not calibration.bases[3].centre.any()
