"""The kernels, interpreted, against the package's own reference over the same bytes: results, and what is written."""

from __future__ import annotations

import pytest
import torch

from kvtide_kernels.pool import StoredLayer
from kvtide_kernels.reference import ReferenceAttention
from kvtide_sizing.formats import INT4, LayerFormat
from tests.kernels.triton.interpreted.oracle import FORMATS, Case, name


@pytest.mark.parametrize("stored", FORMATS[:4], ids=name)
@pytest.mark.parametrize("window", [None, pytest.param(20, marks=pytest.mark.slow)])
def test_a_mixed_step(stored: LayerFormat, window: int | None) -> None:
    case = Case(stored, [(20, 1), (17, 5), (0, 1)], window=window, soft_cap=20.0, sinks=True, kv_heads=2, group=2)
    case.build()
    key, value = case.key.storage.clone(), case.value.storage.clone()
    reference = ReferenceAttention(
        case.layout,
        [StoredLayer(stored, key, value, 0)],
        scale=case.scale,
        soft_cap=case.soft_cap,
        sinks={0: case.sink_logits},
    )
    expected = reference.plan(case.sequences()).run(0, case.query, *case.fresh())
    torch.testing.assert_close(case.run(), expected, atol=3e-4, rtol=1e-3)
    for one, ours, theirs in ((stored.key, case.key, key), (stored.value, case.value, value)):
        different = (ours.storage != theirs).float().mean().item()
        assert different <= (0.002 if one == INT4 else 0)
