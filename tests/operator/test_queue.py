"""The work queue: one pass at a time for a key, none lost, and a bad key that nobody else notices."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from kvtide_operator.edge.queue import WorkQueue

Pass = Callable[[str, str], Awaitable[float | None]]


@asynccontextmanager
async def running(reconcile: Pass, places: int = 32, kept_for_news: int = 8) -> AsyncIterator[WorkQueue]:
    queue = WorkQueue(reconcile, places, kept_for_news)
    task = asyncio.create_task(queue.run())
    try:
        yield queue
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not reached():  # noqa: ASYNC110  any condition, not one event
            await asyncio.sleep(0.005)


async def test_requests_before_a_pass_are_one_pass() -> None:
    passes: Counter[str] = Counter()

    async def reconcile(namespace: str, name: str) -> None:
        passes[f"{namespace}/{name}"] += 1

    async with running(reconcile) as queue:
        for _ in range(5):
            queue.request("team", "a")
        queue.request("team", "b")
        await until(lambda: passes["team/b"] == 1)
        await asyncio.sleep(0.05)
        assert passes == {"team/a": 1, "team/b": 1}


async def test_a_request_during_a_pass_is_one_more_and_never_two_at_once() -> None:
    begun, active, most = 0, 0, 0
    gate = asyncio.Event()

    async def reconcile(namespace: str, name: str) -> None:
        nonlocal begun, active, most
        begun, active = begun + 1, active + 1
        most = max(most, active)
        await gate.wait()
        active -= 1

    async with running(reconcile) as queue:
        queue.request("team", "a")
        await until(lambda: begun == 1)
        for _ in range(3):
            queue.request("team", "a")
        await asyncio.sleep(0.05)
        assert begun == 1
        gate.set()
        await until(lambda: begun == 2)
        await asyncio.sleep(0.05)
        assert (begun, most) == (2, 1)


async def test_a_key_comes_again_when_it_says_so_and_sooner_when_asked() -> None:
    passes = 0

    async def reconcile(namespace: str, name: str) -> float:
        nonlocal passes
        passes += 1
        return 0.05 if passes < 3 else 60.0

    async with running(reconcile) as queue:
        queue.request("team", "a")
        await until(lambda: passes == 3)
        queue.request("team", "a")
        await until(lambda: passes == 4)


async def test_one_that_fails_is_tried_again_and_stops_none_of_the_others() -> None:
    failures, good = 0, 0

    async def reconcile(namespace: str, name: str) -> float | None:
        nonlocal failures, good
        if name == "bad":
            failures += 1
            raise RuntimeError("broken on purpose")
        good += 1
        return 0.01

    async with running(reconcile) as queue:
        queue.request("team", "bad")
        queue.request("team", "good")
        await until(lambda: good > 20)
        assert failures == 1
        await until(lambda: failures == 2)  # after half a second to a second


async def test_who_is_due_first_comes_first_and_passes_that_hang_hold_nobody_up() -> None:
    order: list[str] = []
    gate = asyncio.Event()

    async def reconcile(namespace: str, name: str) -> None:
        order.append(name)
        if name.startswith("hangs"):
            await gate.wait()

    queue = WorkQueue(reconcile)
    hanging = [f"hangs-{number}" for number in range(queue.places - 9)]
    for name in hanging:
        queue.request("team", name)
    queue.request("team", "later", after_s=0.05)
    for name in ("a", "b", "c"):
        queue.request("team", name)
    task = asyncio.create_task(queue.run())
    await until(lambda: "later" in order)
    assert order == [*hanging, "a", "b", "c", "later"]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_news_finds_a_place_where_all_that_is_merely_due_waits() -> None:
    begun: list[str] = []
    gate = asyncio.Event()

    async def reconcile(namespace: str, name: str) -> None:
        begun.append(name)
        if name != "news":
            await gate.wait()

    async with running(reconcile, places=4, kept_for_news=1) as queue:
        for number in range(10):
            queue.request("team", f"due-{number}", after_s=0.001)
        await until(lambda: len(begun) == 3)
        queue.request("team", "news")
        await until(lambda: "news" in begun)
        queue.request("team", "due-9")  # of which there now is news, too
        await until(lambda: begun[-1] == "due-9")
        assert begun == ["due-0", "due-1", "due-2", "news", "due-9"]
        gate.set()
        await until(lambda: len(begun) == 11)


async def test_the_heartbeat_stands_still_where_all_passes_hang() -> None:
    async def reconcile(namespace: str, name: str) -> None:
        await asyncio.sleep(60)

    async with running(reconcile, places=2, kept_for_news=1) as queue:
        for name in "abc":
            queue.request("team", name)
        await asyncio.sleep(0.1)
        before = queue.heartbeat
        await asyncio.sleep(1.2)
        assert queue.heartbeat == before


async def test_the_heartbeat_goes_on_while_there_is_nothing_to_do() -> None:
    async def reconcile(namespace: str, name: str) -> None:
        raise AssertionError("nothing was requested")

    async with running(reconcile) as queue:
        before = queue.heartbeat
        await until(lambda: queue.heartbeat > before + 0.5)


async def test_it_ends_when_told_to_though_something_is_asked_for_in_the_same_turn() -> None:
    async def reconcile(namespace: str, name: str) -> None:
        pass

    queue = WorkQueue(reconcile)
    task = asyncio.create_task(queue.run())
    await asyncio.sleep(0.01)  # it waits for something to do
    queue.request("team", "a")
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=5)
    assert done == {task}
