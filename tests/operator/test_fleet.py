"""What a fleet adds up to, in tokens."""

from collections.abc import Callable

import pytest

from kvtide_operator.autoscale.fleet import add_up, capacity_tokens
from kvtide_operator.autoscale.worker_state import WorkerState


@pytest.mark.parametrize(
    ("state", "mean_output", "demand"),
    [
        ({"live": 700}, 256, 700),
        ({"live": 700, "running": 2, "waiting": 0, "expected": 310}, 256, 700),  # what runs is live already
        # 4 of 8 requests wait: half of 1,600 expected tokens, 4 · 256 would be more
        ({"live": 700, "running": 4, "waiting": 4, "queued": 400, "expected": 1_600}, 256, 700 + 400 + 800),
        # clients that allow 4,096 tokens each do not get them: 4 · 256
        ({"live": 700, "running": 4, "waiting": 4, "queued": 400, "expected": 32_768}, 256, 700 + 400 + 1_024),
    ],
)
def test_demand(make_state: Callable[..., WorkerState], state: dict[str, int], mean_output: int, demand: int) -> None:
    assert add_up([make_state(**state)], mean_output).demand == demand


def test_recent_tokens_of_all_requests_are_demand(make_state: Callable[..., WorkerState]) -> None:
    """2 blocks of 64 for each of 10: an INT4 pool of short sequences is full of these before it is of their tokens."""
    load = add_up([make_state(live=700, running=6), make_state(running=3, waiting=1)], None, recent_tokens=2 * 64)
    assert (load.recent, load.demand) == (10 * 128, 700 + 1280)


@pytest.mark.parametrize(
    ("state", "capacity"),
    [
        ({"live": 3_000, "running": 16, "waiting": 0}, 10_000),  # nobody waits
        ({"live": 3_000, "running": 15, "waiting": 9}, 10_000),  # about to be admitted
        ({"live": 9_000, "running": 16, "waiting": 9}, 10_000),  # memory is what is full
        ({"live": 4_000, "running": 16, "waiting": 9}, 4_000),  # it computes no more than this
        ({"live": 300, "running": 16, "waiting": 9}, 2_500),  # a batch that has just begun shows too little
        ({"live": 4_000, "running": 8, "waiting": 9, "limit": 8}, 10_000),  # held back by us, not by computing
    ],
)
def test_capacity_is_cut_to_what_a_worker_has_shown(
    make_state: Callable[..., WorkerState], state: dict[str, int], capacity: int
) -> None:
    assert capacity_tokens(make_state(**state)) == capacity


def test_the_capacity_of_a_replica_is_the_mean(make_state: Callable[..., WorkerState]) -> None:
    load = add_up([make_state(live=100, capacity=8_000), make_state(live=50, capacity=4_000)], None)
    assert (load.live, load.capacity_per_replica) == (150, 6_000)
