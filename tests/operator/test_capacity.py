"""What a replica is believed to serve. One worker's memory holds 10,000 tokens, its plan 16 sequences."""

import math
from collections.abc import Callable

import pytest

from kvtide_operator.autoscale.capacity import Shown, capacity_tokens, learn_from_latency, learn_from_queues
from kvtide_operator.autoscale.worker_state import WorkerState

NOW = 50_000.0


@pytest.mark.parametrize(
    ("state", "stands"),
    [
        ({"live": 3_000, "running": 16, "waiting": 0}, False),  # nobody waits
        ({"live": 3_000, "running": 15, "waiting": 9}, False),  # about to be admitted
        ({"live": 9_000, "running": 16, "waiting": 9}, False),  # memory is what is full
        ({"live": 4_000, "running": 16, "waiting": 9}, True),  # it computes no more than this
        ({"live": 4_000, "running": 8, "waiting": 9, "limit": 8}, False),  # held back by us, not by computing
    ],
)
def test_only_a_queue_that_memory_is_not_to_blame_for_shows_less(
    make_state: Callable[..., WorkerState], state: dict[str, int], stands: bool
) -> None:
    assert (learn_from_queues([make_state(**state)], 10_000, None, NOW) is not None) == stands


def test_a_queue_is_believed_slowly_and_remembered_when_it_is_gone(make_state: Callable[..., WorkerState]) -> None:
    queue = [make_state(live=4_000, running=16, waiting=9)]
    first = learn_from_queues(queue, 10_000, None, NOW)
    # 2 s of 20: 10,000 - 6,000 · (1 - e^-0.1) = 9,429
    assert first == Shown(9_429, NOW)
    shown: Shown | None = first
    for step in range(1, 61):
        shown = learn_from_queues(queue, 10_000, shown, NOW + 2 * step)
    assert shown is not None
    # after 120 s of it: 4,000 + 5,429 · e^-6 = 4,013, and a little for what fades between two looks
    assert shown.tokens == pytest.approx(4_000 + 5_429 * math.exp(-6), rel=0.01)
    quiet = [make_state(live=1_000, running=4)]
    assert learn_from_queues(quiet, 10_000, shown, NOW + 300) == shown


def test_the_median_of_those_that_show_it_counts(make_state: Callable[..., WorkerState]) -> None:
    fleet = [make_state(live=live, running=16, waiting=9) for live in (2_000, 4_000, 5_000)]
    fleet.append(make_state(live=9_900, running=12))
    # 4,000, as far as it is believed after 2 s
    assert learn_from_queues(fleet, 10_000, None, NOW) == Shown(9_429, NOW)


def test_who_holds_more_without_a_queue_is_believed_at_once(make_state: Callable[..., WorkerState]) -> None:
    shown = Shown(4_000, NOW - 10)
    assert learn_from_queues([make_state(live=6_000, running=15)], 10_000, shown, NOW) == Shown(6_000, NOW)


def test_what_was_shown_fades(make_state: Callable[..., WorkerState]) -> None:
    shown = Shown(3_000, NOW)
    assert capacity_tokens(10_000, shown, NOW) == 3_000
    assert capacity_tokens(10_000, shown, NOW + 1_800) == 6_000  # twice as much after half an hour
    assert capacity_tokens(10_000, shown, NOW + 3_600) == 10_000  # never more than memory
    assert learn_from_queues([make_state()], 10_000, shown, NOW + 3_600) is None
    assert capacity_tokens(10_000, Shown(10, NOW), NOW) == 2_500  # never less than a quarter


def test_tokens_that_were_too_many_for_the_latency_are_more_than_the_capacity() -> None:
    assert learn_from_latency(5_000.0, 10_000, None, NOW) == Shown(5_000, NOW)
    assert learn_from_latency(5_000.0, 10_000, Shown(4_000, NOW), NOW) == Shown(4_000, NOW)
    # a full memory explains slow answers by itself
    assert learn_from_latency(12_000.0, 10_000, None, NOW) is None
