"""What a fleet adds up to, in tokens."""

from collections.abc import Callable

import pytest

from kvtide_operator.autoscale.fleet import Fleet, Pending, Worker, add_up
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
    ("ready", "pending", "absent_s", "supply", "stuck", "replaceable"),
    [
        (2, [], 0.0, 4, 0, False),  # two are not made yet
        (2, [], 121.0, 2, 2, False),  # nor will be, after so long: a quota
        (2, [Pending("a", 60.0, troubled=True)], 0.0, 4, 0, False),
        (2, [Pending("a", 121.0, troubled=True)], 0.0, 3, 1, True),
        (2, [Pending("a", 121.0, troubled=True, unschedulable=True)], 0.0, 3, 1, False),
        (2, [Pending("a", 900.0)], 0.0, 4, 0, False),  # large weights load for a quarter of an hour
        (2, [Pending("a", 1_801.0)], 0.0, 3, 1, True),
        # a rollout's new pod that does not start takes nothing from those that serve
        (4, [Pending("new", 121.0, troubled=True)], 0.0, 4, 1, True),
    ],
)
def test_supply_is_what_serves_and_what_comes_in_time(
    make_state: Callable[..., WorkerState],
    ready: int,
    pending: list[Pending],
    absent_s: float,
    supply: int,
    stuck: int,
    replaceable: bool,
) -> None:
    workers = tuple(Worker(f"w{i}", make_state()) for i in range(ready))
    fleet = Fleet(4, workers, tuple(pending), absent_s)
    assert (fleet.supply, fleet.stuck, fleet.replaceable) == (supply, stuck, replaceable)
    assert fleet.coming == supply - ready


def test_what_a_fresh_worker_says_of_itself_is_not_learnt_from(make_state: Callable[..., WorkerState]) -> None:
    fleet = Fleet(2, (Worker("old", make_state(live=1)), Worker("new", make_state(live=2), ready_s=29.0)))
    assert [state.kv.live_tokens for state in fleet.warm] == [1]
