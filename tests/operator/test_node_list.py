"""The nodes as read from the API server: kept for half a minute, and not an error where they may not be listed."""

import asyncio
import time
from typing import Any, cast

import pytest

from kvtide_operator.edge.kube import ApiError, Kube
from kvtide_operator.edge.nodes import KEPT_S, Nodes

Json = dict[str, Any]


class Cluster:
    """Nodes by their names, or the status with which the API server refuses."""

    def __init__(
        self, *names: str, refusal: int | None = None, slices: dict[str, list[Json] | int] | None = None
    ) -> None:
        self.names = list(names)
        self.slices = slices or {}
        self.refusal = refusal
        self.lists = 0
        self.answers = asyncio.Event()
        self.answers.set()

    async def list_all(self, kind: str, namespace: str | None, selector: str = "") -> list[Json]:
        assert (namespace, selector) == (None, "")
        if kind != "Node":
            offered = self.slices.get(kind, 404)
            if isinstance(offered, int):
                raise ApiError(offered, f"no {kind}")
            return offered
        self.lists += 1
        await self.answers.wait()
        if self.refusal is not None:
            raise ApiError(self.refusal, "nodes is forbidden")
        return [{"metadata": {"name": name, "labels": {"a": "b"}}} for name in self.names]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What time.monotonic says: the only element."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


async def names(nodes: Nodes) -> list[str] | None:
    found = await nodes.read()
    return None if found is None else [node.name for node in found]


async def test_a_new_node_is_seen_within_half_a_minute(clock: list[float]) -> None:
    cluster = Cluster("a")
    nodes = Nodes(cast(Kube, cluster))
    assert await names(nodes) == ["a"]
    cluster.names.append("b")
    clock[0] += KEPT_S - 1
    assert (await names(nodes), cluster.lists) == (["a"], 1)
    clock[0] += 2
    assert (await names(nodes), cluster.lists) == (["a", "b"], 2)


async def test_no_right_to_list_is_no_error_and_not_asked_for_on_every_pass(clock: list[float]) -> None:
    cluster = Cluster(refusal=403)
    nodes = Nodes(cast(Kube, cluster))
    assert (await nodes.read(), await nodes.read(), cluster.lists) == (None, None, 1)
    cluster.refusal = None  # it was granted
    clock[0] += KEPT_S + 1
    assert await names(nodes) == []


async def test_an_api_server_that_does_not_answer_fails_the_pass() -> None:
    with pytest.raises(ApiError):
        await Nodes(cast(Kube, Cluster(refusal=0))).read()


OFFERED = {
    "driver": "gpu.nvidia.com", "nodeName": "a", "pool": {"name": "a", "generation": 1, "resourceSliceCount": 1},
    "devices": [{"attributes": {"type": {"string": "gpu"}}, "capacity": {"memory": {"value": "24Gi"}}}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("slices", "seen"),
    [
        ({"ResourceSlice": [{"spec": OFFERED}]}, [24 << 30]),
        ({"ResourceSlice v1beta1": [{"spec": OFFERED}]}, [24 << 30]),  # before Kubernetes 1.34
        ({}, []),  # without DRA
        ({"ResourceSlice": 403, "ResourceSlice v1beta1": 403}, []),  # a right of a later version of the chart
    ],
)
async def test_what_drivers_offer_is_read_with_the_nodes(slices: dict[str, list[Json] | int], seen: list[int]) -> None:
    (node,) = await Nodes(cast(Kube, Cluster("a", slices=slices))).read() or ()
    assert [device.memory_bytes for device in node.offered] == seen


async def test_who_asks_at_once_shares_one_list_and_one_error() -> None:
    cluster = Cluster("a")
    nodes = Nodes(cast(Kube, cluster))
    assert await asyncio.gather(*(names(nodes) for _ in range(5))) == [["a"]] * 5
    assert cluster.lists == 1
    refused = Cluster(refusal=500)
    nodes = Nodes(cast(Kube, refused))
    answers = await asyncio.gather(*(nodes.read() for _ in range(5)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [ApiError] * 5
    assert refused.lists == 1
    refused.refusal = None  # what failed is asked for again at once
    assert await nodes.read() == ()


async def test_a_list_that_takes_longer_than_one_waits_is_there_for_the_next() -> None:
    cluster = Cluster("a")
    cluster.answers.clear()
    nodes = Nodes(cast(Kube, cluster))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await nodes.read()
    cluster.answers.set()
    assert (await names(nodes), cluster.lists) == (["a"], 1)
