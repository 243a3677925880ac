"""The ConfigMap of measured overheads, over objects that are patched as the API server does it."""

import asyncio
import json
import time
from typing import Any, cast

import pytest

from kvtide_operator.edge.kube import ApiError, Kube
from kvtide_operator.edge.overheads import KEPT_S, OverheadStore
from kvtide_operator.plan.overheads import Overhead

Json = dict[str, Any]
CPU = Overhead("smollm2-135m", "cpu", 400, "registry/worker:1", "0.1.0", 100.0, "2026-01-01T00:00:00Z")
L4 = Overhead("smollm2-135m", "l4", 900, "registry/worker:1", "0.1.0", 200.0, "2026-01-01T00:00:00Z")


class Store:
    """At most one ConfigMap. `refusal` is the HTTP status of every answer, 0 for none."""

    def __init__(self) -> None:
        self.config_map: Json | None = None
        self.refusal: int | None = None
        self.reads = 0

    def _check(self) -> None:
        if self.refusal is not None:
            raise ApiError(self.refusal, "no")

    async def get(self, kind: str, namespace: str, name: str) -> Json | None:
        self._check()
        self.reads += 1
        await asyncio.sleep(0)
        assert (kind, namespace, name) == ("ConfigMap", "kvtide-system", "measured")
        return self.config_map

    async def merge(self, kind: str, namespace: str, name: str, change: Json) -> None:
        self._check()
        if self.config_map is None:
            raise ApiError(404, "not found")
        self.config_map["data"] |= change["data"]

    async def create(self, manifest: Json) -> None:
        self._check()
        self.config_map = manifest


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What time.monotonic says: the only element."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def opened(store: Store) -> OverheadStore:
    return OverheadStore(cast(Kube, store), "kvtide-system", "measured")


async def test_what_was_written_is_read_by_the_next_operator() -> None:
    store = Store()
    first = opened(store)
    assert await first.read() == {}
    await first.write({"smollm2-135m.cpu": CPU})
    await first.write({"smollm2-135m.l4": L4})  # beside the other, which stays
    assert await opened(store).read() == {"smollm2-135m.cpu": CPU, "smollm2-135m.l4": L4}
    assert store.config_map is not None
    assert json.loads(store.config_map["data"]["smollm2-135m.cpu"])["overheadBytes"] == 400
    assert store.config_map["metadata"]["namespace"] == "kvtide-system"


async def test_it_is_read_every_half_minute_and_ones_own_writes_at_once(clock: list[float]) -> None:
    store = Store()
    kept = opened(store)
    await kept.read()
    await kept.write({"smollm2-135m.cpu": CPU})
    clock[0] += KEPT_S - 1
    assert await kept.read() == {"smollm2-135m.cpu": CPU}
    assert store.reads == 1
    store.config_map = None  # a person deletes it
    clock[0] += 2
    assert await kept.read() == {}


@pytest.mark.parametrize("refusal", [0, 403, 500])
async def test_where_it_cannot_be_read_nothing_is_known_and_nobody_fails(refusal: int, clock: list[float]) -> None:
    store = Store()
    store.refusal = refusal
    kept = opened(store)
    assert await kept.read() is None
    await kept.write({"smollm2-135m.cpu": CPU})
    store.refusal = None
    assert await kept.read() == {}  # and it is asked for again at once


@pytest.mark.parametrize("refusal", [0, 403, 500])
async def test_what_was_known_is_kept_where_it_cannot_be_read_or_written(refusal: int, clock: list[float]) -> None:
    store = Store()
    kept = opened(store)
    await kept.read()
    await kept.write({"smollm2-135m.cpu": CPU})
    clock[0] += KEPT_S + 1
    store.refusal = refusal
    assert await kept.read() == {"smollm2-135m.cpu": CPU}
    await kept.write({"smollm2-135m.l4": L4})
    assert await kept.read() == {"smollm2-135m.cpu": CPU}  # the other is learned, and written, once more


async def test_who_asks_at_once_shares_one_reading() -> None:
    store = Store()
    kept = opened(store)
    assert await asyncio.gather(*(kept.read() for _ in range(5))) == [{}] * 5
    assert store.reads == 1
