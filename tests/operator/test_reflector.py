"""A store that is kept as the API server has it, through everything that a watch can do."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtide_operator.api import names
from kvtide_operator.edge import reflector as edge_reflector
from kvtide_operator.edge.kube import ApiError, Kube
from kvtide_operator.edge.reflector import Reflector
from kvtide_operator.edge.store import Key, Store
from tests.operator.api_server import ApiServer

Json = dict[str, Any]
CHAT = ("team", "chat")


def service(name: str, says: int = 0) -> Json:
    labels = {names.NAME_LABEL: "chat"}
    return {
        "kind": "Service",
        "metadata": {"namespace": "team", "name": name, "labels": labels},
        "spec": {"says": says},
    }


class Following:
    """A reflector at work, and whom it woke."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self.woken: list[Key] = []
        self.store: Store[int] = Store(lambda thing: int(thing["spec"]["says"]))
        kube = cast(Kube, server)
        self.reflector = Reflector(kube, "Service", None, "ours", self.store, self.woken.append)

    @property
    def seen(self) -> dict[str, int]:
        return {name: found for name in "abcd" if (found := self.store.get(("team", name))) is not None}

    @property
    def there(self) -> dict[str, int]:
        return {name: thing["spec"]["says"] for (_, _, name), thing in self.server.objects.items()}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge_reflector, "BACKOFF_FIRST_S", 0.001)


@asynccontextmanager
async def following(server: ApiServer) -> AsyncIterator[Following]:
    one = Following(server)
    task = asyncio.create_task(one.reflector.run())
    try:
        yield one
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not reached():  # noqa: ASYNC110  there is nothing that could be waited for
            await asyncio.sleep(0)


async def test_what_was_there_and_what_comes_is_seen_and_asked_for_once() -> None:
    server = ApiServer()
    for name in "abc":
        server.keep(service(name))
    async with following(server) as one:
        await one.reflector.synced.wait()
        assert one.seen == {"a": 0, "b": 0, "c": 0}
        server.keep(service("a", 1))
        server.drop("Service", "team", "b")
        server.keep(service("d"))
        await until(lambda: one.seen == {"a": 1, "c": 0, "d": 0})
    assert server.lists_asked == ["Service"]
    assert one.woken == [CHAT] * 6


async def test_a_broken_watch_goes_on_where_it_was_without_another_list() -> None:
    server = ApiServer()
    server.keep(service("a"))
    async with following(server) as one:
        await one.reflector.synced.wait()
        server.cut()
        server.drop("Service", "team", "a")
        server.keep(service("b", 2))
        await until(lambda: one.seen == {"b": 2})
    assert server.lists_asked == ["Service"]


async def test_what_was_deleted_while_nobody_could_be_told_is_gone_after_the_next_list() -> None:
    server = ApiServer()
    for name in "ab":
        server.keep(service(name))
    async with following(server) as one:
        await one.reflector.synced.wait()
        one.woken.clear()
        server.drop("Service", "team", "a")
        server.keep(service("b", 1))
        server.forget_history()
        await until(lambda: one.seen == {"b": 1})
    assert server.lists_asked == ["Service"] * 2
    assert one.woken[:2] == [CHAT, CHAT]


async def test_a_bookmark_moves_the_place_to_go_on_from_and_is_a_sign_of_life() -> None:
    server = ApiServer()
    server.keep(service("a"))
    async with following(server) as one:
        await one.reflector.synced.wait()
        await asyncio.sleep(0)
        for _ in range(3):
            server.keep({"kind": "Secret", "metadata": {"namespace": "team", "name": "x"}})
        heard_at = one.reflector.heard_at
        server.bookmark("Service")
        await until(lambda: one.reflector.heard_at > heard_at)
        server.forget_history()  # of which nothing is needed: it has been told everything
        server.keep(service("a", 1))
        await until(lambda: one.seen == {"a": 1})
    assert server.lists_asked == ["Service"]


async def test_a_server_that_refuses_is_asked_again_and_nothing_counts_as_listed() -> None:
    server = ApiServer(refused={"Service"})
    server.keep(service("a"))
    async with following(server) as one:
        await until(lambda: len(server.lists_asked) > 2)
        assert not one.reflector.synced.is_set()
        server.refused.clear()
        await one.reflector.synced.wait()
        assert one.seen == {"a": 0}


async def test_a_list_that_breaks_between_two_pages_takes_nothing_away(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ApiServer()
    for name in "abc":
        server.keep(service(name))
    whole, broken = server.lists, False

    async def lists(*arguments: Any) -> AsyncIterator[Json]:
        async for page in whole(*arguments):
            yield page
            if broken:
                raise ApiError(500, "the second page does not come")

    async with following(server) as one:
        await one.reflector.synced.wait()
        monkeypatch.setattr(server, "lists", lists)
        broken = True
        server.keep(service("d"))
        server.cut()
        await until(lambda: "d" in one.seen)
        server.keep({"kind": "Secret", "metadata": {"namespace": "team", "name": "x"}})
        server.forget_history()
        await until(lambda: len(server.lists_asked) > 3)
        assert one.seen == {"a": 0, "b": 0, "c": 0, "d": 0}


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("keep"), st.sampled_from("abcd")),
        st.tuples(st.just("write"), st.sampled_from("abcd")),
        st.tuples(st.just("drop"), st.sampled_from("abcd")),
        st.tuples(st.just("delete"), st.sampled_from("abcd")),
        st.tuples(st.sampled_from(["cut", "forget", "bookmark", "wait", "wait"]), st.just("")),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_whatever_happens_the_store_ends_as_the_server_has_it(steps: list[tuple[str, str]]) -> None:
    """Others' writes and ours, whose answers we have at once; watches that break; histories that are forgotten."""

    async def play() -> None:
        server = ApiServer()
        async with following(server) as one:
            for number, (step, name) in enumerate(steps):
                if step == "keep":
                    server.keep(service(name, number))
                elif step == "write":
                    one.store.wrote(server.keep(service(name, number)))
                    assert one.store.get(("team", name)) == number  # nobody acts on what was before it
                elif step == "drop":
                    server.drop("Service", "team", name)
                elif step == "delete":
                    server.drop("Service", "team", name)
                    one.store.deleted(("team", name))
                elif step == "cut":
                    server.cut()
                elif step == "forget":
                    server.forget_history()
                elif step == "bookmark":
                    server.bookmark("Service")
                else:
                    await asyncio.sleep(0.001)
            await until(lambda: one.seen == one.there)
            await asyncio.sleep(0.003)
            assert one.seen == one.there
            assert len(list(one.store.owned_by(CHAT))) == len(one.there)

    asyncio.run(play())
