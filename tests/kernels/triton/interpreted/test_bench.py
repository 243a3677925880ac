"""The GPU benchmark's own check of the kernels, interpreted, so that no GPU's time goes to mistakes in it."""

from __future__ import annotations

import pytest

from bench import gpu_attention as bench


@pytest.mark.parametrize(
    "name", [*(pytest.param(one, marks=pytest.mark.slow) for one in ("BF16", "INT8", "K8V4")), "INT4"]
)
def test_kernels_are_checked_against_torch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "CHECKED", (34, 3, 1))
    shape = bench.Shape("small", 2, 1, 64)
    assert 0 < bench.check(shape, name, 16, device="cpu") < bench.TOLERANCE[name]
    monkeypatch.setitem(bench.TOLERANCE, name, 0)
    with pytest.raises(AssertionError, match=f"small {name}: off by 0"):
        bench.check(shape, name, 16, device="cpu")


@pytest.mark.parametrize("name", bench.FORMATS)
def test_pools_of_every_format_are_built(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "ROUND_BYTES", 1 << 20)
    pool = bench.Pool(bench.SHAPES[-1], bench.FORMATS[name], (3, 100), 64, device="cpu")
    spans = [bench.SequenceSpan([held], 99, 1) for held in pool.held]
    assert len(pool.attention.plan(spans).tables[0].decodes) == 3


def test_goals_that_were_missed_are_told() -> None:
    fast, slow = (bench.Row("heads", "kvtide", "INT8", 8, 8192, 1.0, 1.0, percent, 1.6) for percent in (76.0, 74.0))
    assert bench.missed([fast]) == []
    assert bench.missed([fast, slow]) == ["heads, 8 x 8192, INT8: 74 % of peak, goal 75 %"]
