"""The kernels, interpreted, against the package's own reference over the same bytes: results, and what is written."""

from __future__ import annotations

import pytest
import torch

from kvtide_kernels.attention import SequenceSpan
from kvtide_kernels.reference import ReferenceAttention, StoredLayer
from kvtide_sizing.formats import INT4, LayerFormat
from tests.kernels.triton.interpreted.oracle import FORMATS, Case, name


@pytest.mark.parametrize("stored", FORMATS[:4], ids=name)
@pytest.mark.parametrize("window", [None, pytest.param(20, marks=pytest.mark.slow)])
def test_a_mixed_step(stored: LayerFormat, window: int | None) -> None:
    case = Case(stored, [(20, 1), (17, 5), (0, 1)], window=window, soft_cap=20.0, sinks=True, kv_heads=2, group=2)
    case.build()
    key, value = (side.storage.clone() for side in (case.cache.key, case.cache.value))
    layer = StoredLayer(stored, key, value, case.soft_cap, case.sink_logits)
    spans = [SequenceSpan([held], *span) for held, span in zip(case.held, case.spans, strict=True)]
    fresh = torch.cat([drawn[:, past:] for drawn, (past, _) in zip(case.history, case.spans, strict=True)], 1)
    reference = ReferenceAttention(case.layout, [layer], scale=case.heads.scale)
    expected = reference.plan(spans).run(0, case.query, *fresh)
    torch.testing.assert_close(case.run(), expected, atol=3e-4, rtol=1e-3)
    for one, ours, theirs in ((stored.key, case.cache.key, key), (stored.value, case.cache.value, value)):
        different = (ours.storage != theirs).float().mean().item()
        assert different <= (0.002 if one == INT4 else 0)
