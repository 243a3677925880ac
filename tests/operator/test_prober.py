"""Who is asked for a token, how often, and what counts as an answer; over real HTTP where it is asked."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web

from kvtide_operator.autoscale.worker_state import WorkerState
from kvtide_operator.edge import prober as edge_prober
from kvtide_operator.edge import worker_client
from kvtide_operator.edge.prober import Prober
from kvtide_operator.edge.worker_client import WorkerClient
from kvtide_operator.reconcile.observed import Answer, Sample
from kvtide_operator.reconcile.pods import PodView

Json = dict[str, Any]
KEY = ("team", "chat")


class Worker:
    """A worker's API port: what it was asked, and how it answers. `hung` answers nobody."""

    def __init__(self) -> None:
        self.asked: list[Json] = []
        self.status = 200
        self.hung = False

    async def complete(self, request: web.Request) -> web.Response:
        self.asked.append(await request.json() | {"key": request.headers.get("Authorization")})
        if self.hung:
            await asyncio.sleep(60)
        return web.json_response({"error": {"message": "so it is"}} if self.status != 200 else {}, status=self.status)


class Clock:
    """A monotonic clock that only moves when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(edge_prober, "time", clock)
    return clock


@pytest.fixture
async def worker(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Worker]:
    worker = Worker()
    application = web.Application()
    application.add_routes([web.post("/v1/completions", worker.complete)])
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    monkeypatch.setattr(worker_client, "HTTP_PORT", runner.addresses[0][1])
    yield worker
    await runner.cleanup()


@pytest.fixture
async def prober() -> AsyncIterator[Prober]:
    client = WorkerClient()
    prober = Prober(client)
    yield prober
    await prober.close()
    await client.close()


@pytest.fixture
def look(
    prober: Prober, worker: Worker, clock: Clock, make_pod: Callable[..., Json], make_state: Callable[..., WorkerState]
) -> Callable[..., Any]:
    """One pass's question: the answer of the one pod, None where there is none yet."""

    async def at(
        now: float, generated: int | None = 0, started_at: float = 1.0, known: dict[str, float] | None = None
    ) -> Answer | None:
        clock.now = 1000.0 + now
        pod = PodView.parse(make_pod(podIP="127.0.0.1"))
        state = make_state(started_at=started_at, tokens=(0, generated or 0))
        samples = {} if generated is None else {"chat-a": Sample(state, 0.5)}
        return (await prober.answers(KEY, "smollm2", None, [pod], samples, known or {})).get("chat-a")

    return at


@pytest.mark.parametrize(
    ("status", "given"), [(200, True), (429, True), (401, None), (500, False), (503, False), (404, False)]
)
async def test_what_counts_as_an_answer(worker: Worker, look: Callable[..., Any], status: int, given: bool) -> None:
    worker.status = status
    answer = await look(0)
    assert answer.given is given
    (asked,) = worker.asked
    assert (asked["model"], asked["max_tokens"], asked["key"]) == ("smollm2", 1, None)
    if given is False:
        assert f"HTTP {status}" in answer.message
        assert "so it is" in answer.message


async def test_the_key_of_clients_is_sent(prober: Prober, worker: Worker, make_pod: Callable[..., Json]) -> None:
    pod = PodView.parse(make_pod(podIP="127.0.0.1"))
    await prober.answers(KEY, "smollm2", "s3cret", [pod], {}, {})
    assert worker.asked[0]["key"] == "Bearer s3cret"


async def test_one_that_answers_is_asked_once_a_minute(worker: Worker, look: Callable[..., Any]) -> None:
    for second in range(0, 121, 2):
        await look(second)
        await asyncio.sleep(0.01)
    assert len(worker.asked) == 3  # at 0, 60 and 120 s


async def test_one_that_generates_for_others_is_not_asked(worker: Worker, look: Callable[..., Any]) -> None:
    for second in range(0, 121, 2):
        await look(second, generated=second)
    assert len(worker.asked) == 1


async def test_one_that_does_not_answer_is_asked_every_five_seconds_until_it_does(
    worker: Worker, look: Callable[..., Any]
) -> None:
    worker.status = 503
    for second in range(11):
        answer = await look(second)
        await asyncio.sleep(0.01)
    assert (len(worker.asked), answer.given) == (3, False)
    worker.status = 200
    await look(15)
    async with asyncio.timeout(10):
        while not (await look(16)).given:  # noqa: ASYNC110  a pass, not an event
            await asyncio.sleep(0.05)


async def test_tokens_for_others_prove_that_it_answers_again(worker: Worker, look: Callable[..., Any]) -> None:
    worker.status = 503
    assert (await look(0)).given is False
    assert (await look(1, generated=7)).given is True


async def test_a_new_process_has_yet_to_answer(worker: Worker, look: Callable[..., Any]) -> None:
    assert (await look(0)).given is True
    worker.status = 503
    assert (await look(1, started_at=2.0)).given is False


async def test_one_that_hangs_holds_up_no_pass_and_is_found_out(
    worker: Worker, look: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge_prober, "PATIENCE_S", 0.05)
    monkeypatch.setattr(edge_prober, "HANGING_S", 0.1)
    worker.hung = True
    assert await look(0, generated=None) is None
    async with asyncio.timeout(10):
        while (answer := await look(1, generated=None)) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert answer.given is False
    assert "no answer to a request of one token within 0 s" in answer.message


async def test_a_new_operator_believes_the_last_ones_word_until_it_has_its_own(
    worker: Worker, look: Callable[..., Any]
) -> None:
    worker.status = 503
    assert (await look(0, known={"chat-a": 1.0})).given is True
    async with asyncio.timeout(10):
        while (await look(1, known={"chat-a": 1.0})).given:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_an_earlier_process_proves_nothing(worker: Worker, look: Callable[..., Any]) -> None:
    worker.status = 503
    assert (await look(0, known={"chat-a": 0.5})).given is False
