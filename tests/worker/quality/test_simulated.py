"""A whole text at once is what decodes of each of its tokens are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kvtide_kernels.attention import SequenceSpan
from kvtide_kernels.reference import ReferenceAttention
from kvtide_sizing.formats import BF16, INT4, INT8, LayerFormat
from kvtide_worker.quality.reader import held_pool
from kvtide_worker.quality.simulated import SimulatedStep
from tests.worker.models.tiny import save_tiny_gemma3
from tests.worker.quality.tiny_measured import load_model, save_model

TOKENS = 75


@pytest.mark.parametrize(
    "formats",
    [
        [LayerFormat(INT4, INT4), LayerFormat(INT8, INT8)],
        [LayerFormat(BF16, INT4), LayerFormat(INT4, BF16)],
        [LayerFormat(INT8, INT4), LayerFormat(BF16, BF16)],
    ],
)
@pytest.mark.parametrize("windowed", [False, True])
def test_each_token_sees_what_a_decode_sees(tmp_path: Path, formats: list[LayerFormat], windowed: bool) -> None:
    save_model(tmp_path)
    if windowed:
        save_tiny_gemma3(tmp_path, head_dim=64)
    measured = load_model(tmp_path)
    config = measured.model.config
    # Gemma has seven layers, of which all but the sixth see 24 tokens.
    formats = (formats * config.num_layers)[: config.num_layers]
    pool, sequences = held_pool(measured, formats, [TOKENS])
    bases = {layer: measured.bases[layer] for layer, stored in enumerate(formats) if stored.has_key_basis}
    attention = ReferenceAttention(pool.layout, pool.layers, scale=config.attention_scale, bases=bases)
    generator = torch.Generator().manual_seed(3)
    query, key, value = (
        torch.randn(TOKENS, heads, config.head_dim, generator=generator)
        for heads in (config.query_heads, config.kv_heads, config.kv_heads)
    )
    # Keys with a large channel and a mean, as models have them: what the basis is for.
    key = key * torch.linspace(0.2, 2, config.head_dim) + 1
    decodes = [attention.plan([SequenceSpan(sequences[0], past, 1)]) for past in range(TOKENS)]
    step = SimulatedStep(config, formats, measured.bases)
    for layer in (0, 1, config.num_layers - 2):
        wanted = torch.cat(
            [
                decode.run(layer, *(side[past : past + 1] for side in (query, key, value)))
                for past, decode in enumerate(decodes)
            ]
        )
        found = step.run(layer, query, key, value)
        # A quotient that lies at a half may be rounded the other way where sums are in another order: all later
        # tokens see it.
        assert (found - wanted).abs().quantile(0.98) < 1e-3
        assert (found - wanted).abs().max() < 0.1
        # Within a window of 24 all tokens are recent ones.
        if formats[layer].keeps_recent and not windowed:
            exact = SimulatedStep(config, [LayerFormat(BF16, BF16)] * config.num_layers, {})
            assert (exact.run(layer, query, key, value) - wanted).abs().quantile(0.98) > 1e-2
