"""The canary: what Kopf does not tell is seen by a list, put right, and told to the kubelet until it speaks."""

from typing import cast

import pytest

from kvtide_operator.api import names
from kvtide_operator.edge import canary as edge_canary
from kvtide_operator.edge.canary import Canary
from kvtide_operator.edge.cluster import compact
from kvtide_operator.edge.health import Health
from kvtide_operator.edge.kube import Kube
from kvtide_operator.edge.store import Key, Store, version_of
from tests.operator.api_server import ApiServer, Json

CHAT = ("team", "chat")


class Clock:
    """A monotonic clock that only moves when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Operator:
    """The store that Kopf feeds, and whom passes were asked for."""

    def __init__(self, server: ApiServer) -> None:
        self.store: Store[bytes] = Store(compact)
        self.woken: list[Key] = []
        self.canary = Canary(cast(Kube, server), (), self.store, self.woken.append)

    def tell(self, thing: Json) -> None:
        """An event reaches Kopf's handler."""
        self.canary.heard(CHAT, version_of(thing))
        self.store.happened(thing)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(edge_canary, "time", clock)
    monkeypatch.setattr("kvtide_operator.edge.health.time", clock)
    return clock


@pytest.fixture
def server() -> ApiServer:
    return ApiServer()


@pytest.fixture
def operator(server: ApiServer, clock: Clock) -> Operator:
    return Operator(server)


def resource(replicas: int) -> Json:
    metadata = {"namespace": "team", "name": "chat"}
    return {"kind": names.KIND, "metadata": metadata, "spec": {"replicas": replicas}}


async def test_where_everything_was_told_nothing_is_owed_and_nothing_written(
    operator: Operator, server: ApiServer, clock: Clock
) -> None:
    operator.tell(server.keep(resource(1)))
    written = server.revision
    for _ in range(10):
        clock.now += 60
        await operator.canary.look()
        assert operator.canary.beat() == clock.now
    assert (operator.woken, server.revision, server.gets_asked) == ([], written, [])


async def test_what_was_not_told_is_put_right_at_once_and_the_kubelet_hears_of_it_until_it_is(
    operator: Operator, server: ApiServer, clock: Clock
) -> None:
    health = Health({"watch": (operator.canary.beat, 240.0)})
    operator.tell(server.keep(resource(1)))
    missed = server.keep(resource(2))
    await operator.canary.look()
    assert operator.woken == [CHAT]
    assert b'"replicas":2' in (operator.store.get(CHAT) or b"")
    clock.now += 240
    await operator.canary.look()
    assert health.late() == []
    clock.now += 1
    assert health.late() == ["watch: silent for 241 s"]
    operator.tell(missed)
    assert health.late() == []


async def test_a_later_change_that_is_told_makes_up_for_the_one_before(
    operator: Operator, server: ApiServer, clock: Clock
) -> None:
    operator.tell(server.keep(resource(1)))
    server.keep(resource(2))
    await operator.canary.look()
    operator.tell(server.keep(resource(3)))
    clock.now += 1000
    assert operator.canary.beat() == clock.now


async def test_our_own_write_is_known_but_its_event_is_owed_all_the_same(
    operator: Operator, server: ApiServer, clock: Clock
) -> None:
    operator.tell(server.keep(resource(1)))
    operator.store.wrote(server.keep(resource(2)))
    await operator.canary.look()
    clock.now += 50
    assert (operator.canary.beat(), server.gets_asked, operator.woken) == (1000.0, [], [])


async def test_the_end_of_one_that_is_told_after_the_next_ones_begin_is_no_end_of_that(
    operator: Operator, server: ApiServer, clock: Clock
) -> None:
    operator.tell(server.keep(resource(1)))
    end = server.revision + 1
    server.drop(names.KIND, *CHAT)
    operator.tell(server.keep(resource(2)))
    operator.canary.heard(CHAT, end, gone=True)
    await operator.canary.look()
    clock.now += 1000
    assert operator.canary.beat() == clock.now


async def test_an_end_that_kopf_never_told_is_found(operator: Operator, server: ApiServer, clock: Clock) -> None:
    operator.tell(server.keep(resource(1)))
    server.drop(names.KIND, *CHAT)
    await operator.canary.look()
    assert (operator.woken, operator.store.get(CHAT)) == ([CHAT], None)
    clock.now += 1000
    assert operator.canary.beat() == clock.now
