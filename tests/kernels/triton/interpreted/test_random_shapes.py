"""Shapes nobody thought of: Hypothesis draws the whole case."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kernels.triton.interpreted.oracle import FORMATS, Case

SPAN = st.tuples(st.integers(0, 90), st.one_of(st.just(1), st.integers(2, 12)))

CASES = st.builds(
    Case,
    stored=st.sampled_from(FORMATS),
    spans=st.lists(SPAN, min_size=1, max_size=4),
    dim=st.sampled_from([64, 80, 96, 112, 128, 192, 256]),
    group=st.integers(1, 20),
    kv_heads=st.integers(1, 2),
    block=st.sampled_from([16, 32, 64, 128]),
    window=st.none() | st.integers(1, 100),
    soft_cap=st.none() | st.floats(1, 30),
    sinks=st.booleans(),
    programs=st.sampled_from([1, 50]),
    seed=st.integers(0, 1000),
)


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=CASES)
def test_any_shape(case: Case) -> None:
    case.check()
