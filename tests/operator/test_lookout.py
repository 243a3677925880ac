"""Who looks after calm workers, and who waits for slow ones: nobody."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from kvtide_operator.autoscale.worker_state import WorkerState
from kvtide_operator.edge import lookout as edge_lookout
from kvtide_operator.edge import sampler as edge_sampler
from kvtide_operator.edge.lookout import Lookout
from kvtide_operator.edge.sampler import Sampler
from kvtide_operator.edge.store import Key
from kvtide_operator.edge.worker_client import WorkerClient, WorkerError
from kvtide_operator.reconcile.looks import is_busy
from kvtide_operator.reconcile.observed import Sample
from kvtide_operator.reconcile.pods import PodView

CHAT, OTHER = ("team", "chat"), ("team", "other")


class Workers:
    """By address: what each says, and after how long. What is not there is silent.

    patient: whether they keep the answer back while they have no requests, as those of earlier versions do not
    """

    def __init__(self) -> None:
        self.say: dict[str, WorkerState] = {}
        self.delay_s: dict[str, float] = {}
        self.asked: list[str] = []
        self.patient = True

    async def sample(self, ip: str, token: str, idle_s: float = 0.0) -> Sample:
        self.asked.append(ip)
        await asyncio.sleep(self.delay_s.get(ip, 0))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(idle_s):
                while self.patient and ip in self.say and not is_busy(self.say[ip]):  # noqa: ASYNC110  any condition
                    await asyncio.sleep(0.005)
        if ip not in self.say:
            raise WorkerError("silent")
        return Sample(self.say[ip], 0.5)


@pytest.fixture
def workers(make_state: Callable[..., WorkerState], monkeypatch: pytest.MonkeyPatch) -> Workers:
    monkeypatch.setattr(edge_lookout, "GATHER_S", 0.02)
    workers = Workers()
    workers.say = {"a": make_state(), "b": make_state()}
    return workers


@pytest.fixture
def pods(make_pod: Callable[..., dict[str, Any]]) -> list[PodView]:
    return [PodView.parse(make_pod(f"chat-{ip}", podIP=ip)) for ip in "ab"]


@asynccontextmanager
async def looking(
    workers: Workers, pods: list[PodView], for_s: float = 60.0
) -> AsyncIterator[tuple[Lookout, list[Key]]]:
    """Passes have found two resources calm, each with workers of the same addresses."""
    woken: list[Key] = []
    sampler = Sampler(cast(WorkerClient, workers), 0.0)
    lookout = Lookout(sampler, 0.02, woken.append)
    for resource, its in ((CHAT, pods), (OTHER, pods[:1])):
        seen = await sampler.samples(resource, its, "token")
        lookout.watch(resource, "token", {pod.name: str(pod.ip) for pod in its}, seen, for_s)
    workers.asked.clear()
    try:
        yield lookout, woken
    finally:
        await lookout.close()


async def test_a_calm_worker_is_asked_once_and_wakes_nobody(workers: Workers, pods: list[PodView]) -> None:
    async with looking(workers, pods) as (_, woken):
        await asyncio.sleep(0.3)
        assert (woken, sorted(workers.asked)) == ([], ["a", "a", "b"])


async def test_one_that_does_not_keep_its_answer_back_is_asked_now_and_then(
    workers: Workers, pods: list[PodView], make_state: Callable[..., WorkerState]
) -> None:
    workers.patient = False
    async with looking(workers, pods) as (_, woken):
        await asyncio.sleep(0.5)
        assert (woken, 20 <= len(workers.asked) <= 100) == ([], True)
        workers.say["b"] = make_state(running=1)
        await asyncio.sleep(0.2)
        assert woken == [CHAT]


@pytest.mark.parametrize("silent", [False, True], ids=["busy", "silent"])
async def test_one_that_says_something_new_wakes_its_resource_once(
    workers: Workers, pods: list[PodView], make_state: Callable[..., WorkerState], silent: bool
) -> None:
    async with looking(workers, pods) as (_, woken):
        await asyncio.sleep(0.1)
        if silent:
            del workers.say["b"]
        else:
            workers.say["b"] = make_state(running=1)
        await asyncio.sleep(0.3)
        assert woken == [CHAT]


async def test_what_comes_to_several_workers_at_once_is_seen_by_one_pass(
    workers: Workers, pods: list[PodView], make_state: Callable[..., WorkerState]
) -> None:
    async with looking(workers, pods) as (lookout, woken):
        await asyncio.sleep(0.1)
        workers.say["a"] = make_state(running=1)
        await asyncio.sleep(0.01)
        workers.say["b"] = make_state(running=2)
        async with asyncio.timeout(2):
            while CHAT not in woken:  # noqa: ASYNC110  a condition, not an event
                await asyncio.sleep(0.002)
        workers.asked.clear()
        lookout.sampler.fresh_s = 1.0
        samples = await lookout.sampler.samples(CHAT, pods, "token")
        assert {name: sample.state.requests.running for name, sample in samples.items()} == {"chat-a": 1, "chat-b": 2}
        assert workers.asked == []


async def test_before_the_next_pass_each_gives_its_last_word_and_the_pass_takes_it(
    workers: Workers, pods: list[PodView]
) -> None:
    async with looking(workers, pods, for_s=0.2) as (lookout, woken):
        await asyncio.sleep(0.4)
        assert (woken, sorted(workers.asked)) == ([], ["a", "a", "b"])
        workers.asked.clear()
        lookout.sampler.fresh_s = 1.0
        assert set(await lookout.sampler.samples(CHAT, pods, "token")) == {"chat-a", "chat-b"}
        assert workers.asked == []


async def test_when_a_pass_begins_nobody_else_looks(workers: Workers, pods: list[PodView]) -> None:
    async with looking(workers, pods) as (lookout, woken):
        await asyncio.sleep(0.1)
        lookout.leave(CHAT)
        lookout.leave(OTHER)
        workers.asked.clear()
        workers.say.clear()
        await asyncio.sleep(0.3)
        assert (woken, workers.asked) == ([], [])


async def test_a_worker_that_hangs_keeps_no_other_from_being_heard(
    workers: Workers, pods: list[PodView], make_state: Callable[..., WorkerState]
) -> None:
    async with looking(workers, pods) as (_, woken):
        workers.delay_s["b"] = 60
        await asyncio.sleep(0.1)
        workers.say["a"] = make_state(running=1)
        await asyncio.sleep(0.3)
        assert sorted(woken) == [CHAT, OTHER]


async def test_a_look_takes_what_was_said_between_looks_and_asks_nobody_again(
    workers: Workers, pods: list[PodView], make_state: Callable[..., WorkerState]
) -> None:
    sampler = Sampler(cast(WorkerClient, workers), fresh_s=0.2)
    await sampler.samples(CHAT, pods, "token")
    workers.say["a"] = make_state(running=3)
    await sampler.listen(CHAT, "chat-a", "a", "token", 5.0)
    workers.asked.clear()
    now = await sampler.samples(CHAT, pods, "token")
    assert (now["chat-a"].state.requests.running, workers.asked) == (3, [])
    await asyncio.sleep(0.25)
    await sampler.samples(CHAT, pods, "token")
    assert workers.asked == ["a", "b"]


async def test_a_pass_waits_for_a_slow_worker_once_and_never_again(
    workers: Workers, pods: list[PodView], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge_sampler, "PATIENCE_S", 0.05)
    workers.delay_s["a"] = 60
    sampler, clock = Sampler(cast(WorkerClient, workers), 0.0), asyncio.get_running_loop().time
    for waits in (True, False, False):
        began = clock()
        assert set(await sampler.samples(CHAT, pods, "token")) == {"chat-b"}
        assert (clock() - began >= 0.05) is waits
    assert workers.asked.count("a") == 1
    sampler.forget(CHAT)


async def test_what_a_slow_worker_said_in_the_meantime_is_taken_with_its_age_until_it_is_quick_again(
    workers: Workers, pods: list[PodView], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge_sampler, "PATIENCE_S", 0.05)
    workers.delay_s["a"] = 0.1
    sampler = Sampler(cast(WorkerClient, workers), 0.0)
    assert set(await sampler.samples(CHAT, pods, "token")) == {"chat-b"}
    await asyncio.sleep(0.2)
    late = await sampler.samples(CHAT, pods, "token")
    assert late["chat-a"].age_s == pytest.approx(0.65, abs=0.05)  # 0.5, and 0.15 since it came
    workers.delay_s.clear()
    await asyncio.sleep(0.15)
    await sampler.samples(CHAT, pods, "token")
    asked = len(workers.asked)
    assert set(await sampler.samples(CHAT, pods, "token")) == {"chat-a", "chat-b"}
    assert workers.asked[asked:] == ["a", "b"]
    sampler.forget(CHAT)


async def test_one_that_is_late_is_as_it_was_and_one_that_does_not_answer_at_all_is_missing(
    workers: Workers, pods: list[PodView], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge_sampler, "PATIENCE_S", 0.05)
    sampler = Sampler(cast(WorkerClient, workers), 0.0)
    await sampler.samples(CHAT, pods, "token")
    workers.delay_s["a"] = 0.2
    del workers.say["a"]
    late = await sampler.samples(CHAT, pods, "token")
    assert late["chat-a"].age_s == pytest.approx(0.55, abs=0.03)  # 0.5, and as long as was waited for it
    assert (late["chat-a"].late, late["chat-b"].late) == (True, False)
    await asyncio.sleep(0.2)
    assert set(await sampler.samples(CHAT, pods, "token")) == {"chat-b"}
    sampler.forget(CHAT)


async def test_a_silent_worker_is_left_out_at_once(workers: Workers, pods: list[PodView]) -> None:
    del workers.say["a"]
    sampler = Sampler(cast(WorkerClient, workers), 0.0)
    for _ in range(3):
        assert set(await sampler.samples(CHAT, pods, "token")) == {"chat-b"}
