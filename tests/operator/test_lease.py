"""The Lease, over a store that keeps resourceVersions as the API server does. tests/cluster has the real one."""

import asyncio
import copy
from typing import Any, cast

import pytest

from kvtide_operator.edge import lease as lease_module
from kvtide_operator.edge.kube import ApiError, Kube
from kvtide_operator.edge.lease import Lease, LeaseLost

Json = dict[str, Any]


class Store:
    """One Lease with optimistic locking, which may be unreachable."""

    def __init__(self) -> None:
        self.lease: Json | None = None
        self.reachable = True

    def _check(self) -> None:
        if not self.reachable:
            raise ApiError(0, "no route")

    async def get(self, kind: str, namespace: str, name: str) -> Json | None:
        self._check()
        return copy.deepcopy(self.lease)

    async def create(self, manifest: Json) -> None:
        self._check()
        if self.lease is not None:
            raise ApiError(409, "exists")
        self.lease = copy.deepcopy(manifest)
        self.lease["metadata"]["resourceVersion"] = "1"

    async def replace(self, manifest: Json) -> None:
        self._check()
        assert self.lease is not None
        version = self.lease["metadata"]["resourceVersion"]
        if manifest["metadata"]["resourceVersion"] != version:
            raise ApiError(409, "conflict")
        self.lease = copy.deepcopy(manifest)
        self.lease["metadata"]["resourceVersion"] = str(int(version) + 1)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store, and times that a test can wait for."""
    for name, value in (("RENEW_S", 0.05), ("RETRY_S", 0.02), ("GIVE_UP_S", 0.2)):
        monkeypatch.setattr(lease_module, name, value)
    monkeypatch.setattr(lease_module, "DURATION_S", 1)
    return Store()


def candidate(store: Store, identity: str) -> Lease:
    return Lease(cast(Kube, store), "kvtide-system", "kvtide-operator", identity)


async def test_one_holds_and_the_other_waits_until_it_is_given_back(store: Store) -> None:
    one, two = candidate(store, "one"), candidate(store, "two")
    await one.acquire()
    keeping = asyncio.create_task(one.keep())
    waiting = asyncio.create_task(two.acquire())
    await asyncio.sleep(1.5)  # longer than the duration: it is renewed all the while
    assert (one.held, two.held) == (True, False)
    keeping.cancel()
    await one.release()
    async with asyncio.timeout(1):
        await waiting
    assert store.lease is not None
    assert store.lease["spec"]["holderIdentity"] == "two"
    assert store.lease["spec"]["leaseTransitions"] == 1


async def test_a_holder_that_died_is_followed_after_the_duration(store: Store) -> None:
    await candidate(store, "dead").acquire()
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.timeout(5):
        await candidate(store, "next").acquire()
    assert loop.time() - began >= 1.0


async def test_a_container_that_comes_back_under_its_own_name_does_not_wait(store: Store) -> None:
    await candidate(store, "kvtide-operator-abc").acquire()
    async with asyncio.timeout(0.5):
        await candidate(store, "kvtide-operator-abc").acquire()


async def test_a_lease_that_cannot_be_renewed_is_lost(store: Store) -> None:
    lease = candidate(store, "one")
    await lease.acquire()
    store.reachable = False
    with pytest.raises(LeaseLost):
        async with asyncio.timeout(5):
            await lease.keep()
    assert not lease.held


async def test_a_short_outage_is_survived(store: Store) -> None:
    lease = candidate(store, "one")
    await lease.acquire()
    keeping = asyncio.create_task(lease.keep())
    store.reachable = False
    await asyncio.sleep(0.1)
    store.reachable = True
    await asyncio.sleep(0.4)
    assert not keeping.done()
    keeping.cancel()
