"""The phases of a worker's life as rows of time."""

import pytest

from kvtide_worker.server.lifecycle import Lifecycle, Phase


def lifecycle(
    *, loaded: bool, drained_at: float | None = None, announced: bool = True, drain_s: float = 120
) -> Lifecycle:
    made = Lifecycle(lame_duck_s=5, drain_s=drain_s, loaded=loaded)
    if drained_at is not None:
        made.begin_drain(drained_at, announced=announced)
    return made


@pytest.mark.parametrize(
    ("made", "now", "phase", "accepts"),
    [
        (lifecycle(loaded=False), 0, Phase.LOADING, False),
        (lifecycle(loaded=True), 0, Phase.SERVING, True),
        (lifecycle(loaded=True, drained_at=10), 10, Phase.LAME_DUCK, True),
        (lifecycle(loaded=True, drained_at=10), 14.9, Phase.LAME_DUCK, True),
        (lifecycle(loaded=True, drained_at=10), 15, Phase.REFUSING, False),
        (lifecycle(loaded=True, drained_at=10, announced=False), 10, Phase.REFUSING, False),  # Ctrl-C
        (lifecycle(loaded=True, drained_at=10, drain_s=2), 12, Phase.REFUSING, False),  # the duck is within the drain
        (lifecycle(loaded=False, drained_at=10), 10, Phase.REFUSING, False),
    ],
)
def test_phases(made: Lifecycle, now: float, phase: Phase, accepts: bool) -> None:
    assert made.phase(now) is phase
    assert made.accepts(now) is accepts


def test_a_second_signal_only_makes_the_end_sooner() -> None:
    made = lifecycle(loaded=True, drained_at=10)
    made.begin_drain(12, announced=True)
    assert (made.refuse_at, made.deadline) == (15, 130)
    made.begin_drain(12, announced=False)
    assert (made.refuse_at, made.deadline) == (12, 130)
