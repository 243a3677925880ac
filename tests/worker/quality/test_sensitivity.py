"""The sensitivity of layers: what hurts is found, and can be read back."""

from __future__ import annotations

from pathlib import Path

import torch

from kvtide_sizing.models.sensitivity import with_measurement
from kvtide_worker.quality.sensitivity import measure_sensitivity, sensitivity_passes
from kvtide_worker.quality.windows import spread
from tests.worker.quality.tiny_measured import load_model, random_tokens, save_model


def test_the_layer_that_is_seen_most_is_the_most_sensitive(tmp_path: Path) -> None:
    model = save_model(tmp_path)
    with torch.no_grad():
        # Values of the first layer hardly reach the residual stream.
        model.model.layers[0].self_attn.o_proj.weight *= 1e-3
    model.save_pretrained(tmp_path)
    measured, ticks = load_model(tmp_path), []
    windows = spread(random_tokens(400), [1], count=2, size=120, scored=40)
    found = measure_sensitivity(measured, "a text", windows, lambda: ticks.append(1))
    assert len(ticks) == sensitivity_passes(2, windows)
    assert (found.tokens, found.text, len(found.layers)) == (80, "a text", 2)
    quiet, loud = found.layers
    for side in (loud.key, loud.value):
        assert side.int4 > 3 * side.int8 > 0
    assert loud.value.int4 > 100 * quiet.value.int4
    assert loud.key.int4 > 100 * quiet.key.int4

    assert with_measurement(measured.shape, found.to_json()).sensitivity == tuple(found.layers)
