"""The canary: a quiet watch is touched, one that echoes is well, one that does not is told to the kubelet."""

import pytest

from kvtide_operator.api import names
from kvtide_operator.edge import canary as edge_canary
from kvtide_operator.edge.canary import QUIET_S, Canary
from kvtide_operator.edge.health import Health
from kvtide_operator.edge.kube import ApiError


class Clock:
    """A monotonic clock that only moves when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Cluster:
    """What was touched; `broken` is answered with this status, and `echoes` come back at once."""

    def __init__(self) -> None:
        self.touched: list[tuple[str, str, str]] = []
        self.broken: int | None = None
        self.echoes: Canary | None = None

    async def touch(self, kind: str, namespace: str, name: str) -> None:
        self.touched.append((kind, namespace, name))
        if self.broken is not None:
            raise ApiError(self.broken, "no")
        if self.echoes is not None:
            self.echoes.heard(kind, namespace, name, gone=False)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(edge_canary, "time", clock)
    return clock


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def canary(clock: Clock, cluster: Cluster) -> Canary:
    return Canary(cluster.touch)


async def test_where_events_come_nothing_is_written(canary: Canary, cluster: Cluster, clock: Clock) -> None:
    canary.heard("Pod", "team", "chat-a", gone=False)
    for _ in range(20):
        clock.now += QUIET_S - 1
        canary.heard("Pod", "team", "chat-a", gone=False)
        await canary.look("Pod")
    assert cluster.touched == []
    assert canary.beat("Pod") == clock.now


async def test_a_quiet_watch_is_touched_and_well_where_it_echoes(
    canary: Canary, cluster: Cluster, clock: Clock
) -> None:
    canary.heard("Pod", "team", "chat-a", gone=False)
    cluster.echoes = canary
    for _ in range(10):
        clock.now += QUIET_S
        await canary.look("Pod")
        assert canary.beat("Pod") == clock.now
    assert cluster.touched == [("Pod", "team", "chat-a")] * 10


async def test_a_watch_that_stalls_is_told_to_the_kubelet_until_it_speaks(
    canary: Canary, cluster: Cluster, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvtide_operator.edge.health.time", clock)
    health = Health({"watch of Pods": (lambda: canary.beat("Pod"), 150.0)})
    canary.heard("Pod", "team", "chat-a", gone=False)
    clock.now += QUIET_S
    await canary.look("Pod")
    for _ in range(15):
        clock.now += 10
        await canary.look("Pod")
        assert health.late() == []
    clock.now += 10
    assert health.late() == ["watch of Pods: silent for 160 s"]
    canary.heard("Pod", "team", "chat-a", gone=False)
    assert health.late() == []


@pytest.mark.parametrize("status", [0, 403, 409, 503])
async def test_an_api_server_that_refuses_is_no_stalled_watch(
    canary: Canary, cluster: Cluster, clock: Clock, status: int
) -> None:
    canary.heard("Pod", "team", "chat-a", gone=False)
    cluster.broken = status
    clock.now += QUIET_S
    await canary.look("Pod")
    clock.now += 1000
    assert canary.beat("Pod") == clock.now


async def test_what_is_gone_is_touched_no_more(canary: Canary, cluster: Cluster, clock: Clock) -> None:
    canary.heard("Pod", "team", "chat-a", gone=False)
    canary.heard("Pod", "team", "chat-b", gone=False)
    canary.heard("Pod", "team", "chat-a", gone=True)
    clock.now += QUIET_S
    cluster.broken = 404  # gone, and the watch did not say so
    await canary.look("Pod")
    await canary.look("Pod")
    assert cluster.touched == [("Pod", "team", "chat-b")]


async def test_each_kind_is_judged_by_itself(canary: Canary, cluster: Cluster, clock: Clock) -> None:
    for kind in (names.KIND, "Pod"):
        canary.heard(kind, "team", "chat", gone=False)
    clock.now += QUIET_S
    canary.heard("Pod", "team", "chat", gone=False)
    for kind in edge_canary.KINDS:
        await canary.look(kind)
    assert cluster.touched == [(names.KIND, "team", "chat")]  # and no Deployment is known
