"""Fitting the key bases of a model's layers, while it reads a text for the first time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.functional import scaled_dot_product_attention

from kvtide_kernels.attention import seen_in_text
from kvtide_kernels.key_basis import KeyBasis, fit_key_basis
from kvtide_sizing.formats import LayerFormat


class Calibration:
    """An `AttentionStep` over the first tokens of one sequence, without a pool, that fits a basis in each layer.

    formats:  of the layers; those that store keys in BF16 need no basis
    windows:  per layer, as in `TableLayout`
    centred:  as in `fit_key_basis`
    bases:    what was fitted, once the model has run
    """

    def __init__(
        self, formats: Sequence[LayerFormat], *, windows: Sequence[int | None], scale: float, centred: bool
    ) -> None:
        self._formats, self._windows = formats, windows
        self._scale, self._centred = scale, centred
        self.bases: dict[int, KeyBasis] = {}
        self._seen: dict[int | None, torch.Tensor] = {}

    def run(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """As `AttentionStep.run`, of the tokens 0 to len(query) - 1."""
        window = self._windows[layer]
        if window not in self._seen:
            self._seen[window] = seen_in_text(len(query), window, query.device)
        seen = self._seen[window]
        if self._formats[layer].has_key_basis:
            self.bases[layer] = fit_key_basis(query, key, seen, scale=self._scale, centred=self._centred)
        q, k, v = (side.transpose(0, 1)[None] for side in (query, key, value))
        # Without a mask torch leaves out what no token sees, which is half of it.
        mask = {"is_causal": True} if window is None else {"attn_mask": seen}
        out = scaled_dot_product_attention(q, k, v, scale=self._scale, enable_gqa=True, **mask)
        return out[0].transpose(0, 1)
