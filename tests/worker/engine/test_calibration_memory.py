"""What the planner reserves for fitting key bases is at least what fitting one layer's takes."""

from __future__ import annotations

import pytest
import torch

from kvtide_kernels.calibration import Calibration
from kvtide_sizing.formats import INT8, LayerFormat
from kvtide_sizing.memory.key_bases import CALIBRATION_TOKENS, calibration_bytes
from kvtide_sizing.models.catalog import builtin
from kvtide_worker.engine.peak import AllocationPeak


@pytest.mark.parametrize(
    "model", ["smollm2-135m", "gemma-3-270m", "llama-2-7b", "llama-3-8b", "qwen3-235b-a22b", "falcon-7b"]
)
def test_a_layer_takes_no_more_than_is_planned(model: str) -> None:
    shape = builtin(model)
    layer = shape.layers[-1]
    query = torch.randn(CALIBRATION_TOKENS, shape.query_heads, layer.head_dim).bfloat16()
    key = torch.randn(CALIBRATION_TOKENS, layer.kv_heads, layer.head_dim).bfloat16()
    stored = [LayerFormat(INT8, INT8)]
    calibration = Calibration(stored, windows=[None], scale=layer.head_dim**-0.5, centred=True)
    with AllocationPeak(torch.device("cpu")) as peak:
        calibration.run(0, query, key, key)
    taken = peak.peak_bytes + query.nbytes + 2 * key.nbytes
    assert taken <= calibration_bytes(shape)
