"""A plan that is refilled where it lies, interpreted: what each batch gives by it is what the reference gives."""

from __future__ import annotations

import pytest

from kvtide_kernels.triton.graph_plan import GraphPlan
from kvtide_sizing.formats import BF16, INT4, INT8, LayerFormat
from tests.kernels.triton.interpreted.twins import Twins

LAYERS = [LayerFormat(INT8, INT4), LayerFormat(BF16, BF16)]


def grown(*tokens: int, **options: object) -> Twins:
    """Sequences of so many tokens."""
    twins = Twins(LAYERS, **options)  # type: ignore[arg-type]
    for count in tokens:
        twins.step((twins.add(), count))
    return twins


def step(twins: Twins, plan: GraphPlan, *numbers: int) -> None:
    """A decode of these sequences by the plan."""
    spans = twins.spans([(number, 1) for number in numbers])
    plan.refill(spans)
    twins.check(spans, plan, rows=plan.sequences)
    for number in numbers:
        twins.sequences[number].tokens += 1


def addresses(plan: GraphPlan) -> list[tuple[int, tuple[int, ...]]]:
    """Where the plan's arrays lie, and their shapes, which the grids are made of."""
    return [(one.data_ptr(), tuple(one.shape)) for table in plan.tables for one in vars(table).values()]


@pytest.mark.parametrize("split", [None, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("windows", [(None,), pytest.param((None, 20), marks=pytest.mark.slow)])
def test_batches_of_any_kind_by_one_plan(split: bool | None, windows: tuple[int | None, ...]) -> None:
    """A long sequence is cut into two items beside short ones; then it is alone, then it is gone."""
    twins = grown(290, 20, 3, windows=windows, programs=64, block=32)
    plan = twins.attention.graph_plan(sequences=4, tokens=400, split=split)
    assert plan.split is (split is None)
    before = addresses(plan)
    for numbers in [(0, 1, 2), (0,), (2, 1), (1, 0)]:
        step(twins, plan, *numbers)
    assert addresses(plan) == before


@pytest.mark.slow
def test_the_longest_sequences_that_there_is_room_for() -> None:
    """On a device of 8 programs at once, 256 tokens are an item: three sequences of 520 are nine."""
    twins = grown(519, 519, 519, programs=8, num_blocks=200)
    plan = twins.attention.graph_plan(sequences=3, tokens=521, split=True)
    step(twins, plan, 0, 1, 2)
    step(twins, plan, 2, 0, 1)


def test_a_batch_that_fills_the_device_is_not_split() -> None:
    twins = Twins(LAYERS[:1], programs=4)
    assert twins.attention.graph_plan(sequences=3, tokens=99).split
    assert not twins.attention.graph_plan(sequences=4, tokens=99).split


def test_refuses_what_it_has_no_room_for() -> None:
    twins = Twins(LAYERS[:1])
    plan = twins.attention.graph_plan(sequences=2, tokens=40)
    numbers = [twins.add() for _ in range(3)]
    with pytest.raises(ValueError, match="3 sequences are more than the 2 that this plan has room for"):
        plan.refill(twins.spans([(number, 1) for number in numbers]))
    with pytest.raises(ValueError, match="of decodes, but span 1 has 2 new tokens"):
        plan.refill(twins.spans([(numbers[0], 1), (numbers[1], 2)]))
    twins.sequences[0].tokens = 40
    with pytest.raises(ValueError, match="span 0 has 41 tokens, but this plan has room for 40 of each"):
        plan.refill(twins.spans([(numbers[0], 1)]))
    with pytest.raises(ValueError, match="not for 0 of 40"):
        twins.attention.graph_plan(sequences=0, tokens=40)
