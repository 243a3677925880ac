"""The admin port as docs/architecture.md has it, over real HTTP."""

import json
import time
from collections.abc import AsyncIterator, Callable
from email.utils import formatdate
from typing import Any

import pytest
from aiohttp import web

from kvtide_operator.edge import worker_client
from kvtide_operator.edge.sampler import Sampler
from kvtide_operator.edge.worker_client import WorkerClient, WorkerError
from kvtide_operator.reconcile.pods import PodView

TOKEN = "s3cret"
# The example of docs/architecture.md, word for word where it matters.
STATE = """{"version": "0.1.0", "modelName": "smollm2", "ready": true, "draining": false,
 "startedAt": 1767225600.0, "sampledAt": 1767225660.0, "device": "cpu",
 "kv": {"precision": "BF16", "blockSizeTokens": 64, "numBlocks": 160, "capacityTokens": 10240,
        "liveBlocks": 12, "cachedBlocks": 0, "freeBlocks": 148, "liveTokens": 700, "utilization": 0.075},
 "requests": {"running": 2, "waiting": 0, "queuedPromptTokens": 0, "expectedOutputTokens": 310},
 "limits": {"batchLimit": 16, "maxBatchLimit": 16},
 "counters": {"preemptions": 0, "promptTokens": 900, "generationTokens": 210, "requests": 5},
 "memory": {"predicted": {"weightsBytes": 0, "kvPoolBytes": 0, "activationsBytes": 0, "overheadBytes": 0,
                          "reserveBytes": 0},
            "measured": {"weightsBytes": 0, "kvPoolBytes": 0, "activationsBytes": 0, "otherBytes": 0,
                         "freeBytes": 0, "deviceBytes": 0}}}"""


class Worker:
    """A worker's admin port with a clock of its own."""

    def __init__(self) -> None:
        self.answer = STATE
        self.clock = time.time()
        self.limits: list[Any] = []
        self.idle_seconds: list[float] = []

    async def state(self, request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return web.Response(status=401)
        self.idle_seconds.append(float(request.query.get("idleSeconds", 0)))
        return web.Response(text=self.answer, headers={"Date": formatdate(self.clock, usegmt=True)})

    async def put_limits(self, request: web.Request) -> web.Response:
        body = await request.json()
        if body.get("kvPrecision", "INT8") != "INT8":
            return web.Response(status=400, text="kvPrecision FP7: it may become INT8")
        if not 1 <= body.get("batchLimit", 16) <= 16:
            return web.Response(status=422, text="batchLimit is from 1 to 16")
        self.limits.append(body)
        return web.json_response({"batchLimit": 16, "maxBatchLimit": 16} | body)


@pytest.fixture
async def worker(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Worker]:
    worker = Worker()
    application = web.Application()
    application.add_routes([web.get("/v1/state", worker.state), web.put("/v1/limits", worker.put_limits)])
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    monkeypatch.setattr(worker_client, "ADMIN_PORT", runner.addresses[0][1])
    yield worker
    await runner.cleanup()


@pytest.fixture
async def client() -> AsyncIterator[WorkerClient]:
    client = WorkerClient()
    yield client
    await client.close()


@pytest.fixture
def pods(make_pod: Callable[..., dict[str, Any]]) -> list[PodView]:
    return [PodView.parse(make_pod("here", podIP="127.0.0.1")), PodView.parse(make_pod("gone", podIP="127.0.0.2"))]


async def test_one_that_does_not_answer_is_left_out(worker: Worker, client: WorkerClient, pods: list[PodView]) -> None:
    samples = await Sampler(client, 0.0).samples(("team", "chat"), pods, TOKEN)
    assert set(samples) == {"here"}
    state = samples["here"].state
    assert (state.kv.capacity_tokens, state.kv.live_tokens, state.requests.running) == (10_240, 700, 2)
    assert (state.limits.batch_limit, state.requests.expected_output_tokens) == (16, 310)


@pytest.mark.parametrize("skew_s", [0.0, -3600.0, 3600.0])
async def test_age_is_judged_by_the_workers_own_clock(
    worker: Worker, client: WorkerClient, pods: list[PodView], skew_s: float
) -> None:
    worker.clock = time.time() + skew_s
    worker.answer = json.dumps({**json.loads(STATE), "sampledAt": worker.clock - 40})
    samples = await Sampler(client, 0.0).samples(("team", "chat"), pods[:1], TOKEN)
    assert samples["here"].age_s == pytest.approx(40, abs=1.5)  # the Date header has whole seconds


async def test_a_worker_is_told_how_long_it_may_keep_its_answer_back(worker: Worker, client: WorkerClient) -> None:
    await client.sample("127.0.0.1", TOKEN)
    await client.sample("127.0.0.1", TOKEN, idle_s=4.25)
    assert worker.idle_seconds == [0.0, 4.25]


@pytest.mark.parametrize("answer", ["", "{}", "[]", '{"kv": {"capacityTokens": 0}}'])
async def test_an_answer_that_is_no_state_is_no_answer(
    worker: Worker, client: WorkerClient, pods: list[PodView], answer: str
) -> None:
    worker.answer = answer
    assert await Sampler(client, 0.0).samples(("team", "chat"), pods[:1], TOKEN) == {}


async def test_a_wrong_token_is_no_answer(worker: Worker, client: WorkerClient, pods: list[PodView]) -> None:
    assert await Sampler(client, 0.0).samples(("team", "chat"), pods[:1], "guess") == {}


async def test_limits_are_pushed_and_refusals_are_told(worker: Worker, client: WorkerClient) -> None:
    await client.push_limit("127.0.0.1", TOKEN, 12)
    assert worker.limits == [{"batchLimit": 12}]
    with pytest.raises(WorkerError, match="batchLimit is from 1 to 16"):
        await client.push_limit("127.0.0.1", TOKEN, 99)
    with pytest.raises(WorkerError):
        await client.push_limit("127.0.0.2", TOKEN, 12)


async def test_a_precision_is_pushed_and_one_that_cannot_be_is_told(worker: Worker, client: WorkerClient) -> None:
    await client.push_precision("127.0.0.1", TOKEN, "INT8")
    assert worker.limits == [{"kvPrecision": "INT8"}]
    with pytest.raises(WorkerError, match="HTTP 400 kvPrecision FP7: it may become INT8"):
        await client.push_precision("127.0.0.1", TOKEN, "FP7")
