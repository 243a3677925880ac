"""The least loss within a budget, against every choice there is."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtide_sizing.knapsack import Option, least_loss

options = st.builds(
    Option,
    st.sampled_from([0, 1, 2, 36, 66, 128]),
    st.just(0.0) | st.floats(0, 2) | st.floats(0, 1e-6),
)


@given(st.lists(st.lists(options, min_size=1, max_size=3), min_size=1, max_size=6), st.floats(0, 1))
def test_no_choice_within_the_budget_loses_less(sides: list[list[Option]], share: float) -> None:
    smallest, largest = (sum(pick(option.size for option in side) for side in sides) for pick in (min, max))
    budget = smallest + int(share * (largest - smallest))
    chosen = [side[index] for side, index in zip(sides, least_loss(sides, budget), strict=True)]
    assert sum(option.size for option in chosen) <= budget
    fitting = (choice for choice in product(*sides) if sum(option.size for option in choice) <= budget)
    best = min(sum(option.loss for option in choice) for choice in fitting)
    assert sum(option.loss for option in chosen) == pytest.approx(best, abs=1e-12)


def test_what_greed_misses_is_found() -> None:
    """The first side saves most for each byte, 4 for 60; but then the second's 5 for 62 find no room."""
    sides = [[Option(0, 4.0), Option(60, 0.0)], [Option(0, 5.0), Option(100, 0.0)]]
    assert least_loss(sides, 100) == [0, 1]


def test_a_budget_below_the_smallest_choice_is_refused() -> None:
    with pytest.raises(ValueError, match="71 bytes are 1 less than the smallest choice takes"):
        least_loss([[Option(36, 0.1), Option(66, 0.0)]] * 2, 71)
