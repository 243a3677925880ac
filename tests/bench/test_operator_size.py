"""The benchmark of the operator's size: what it simulates is what workers say, and what it counts is right."""

import asyncio
import functools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bench.operator_size import measured
from bench.operator_size.__main__ import percentile
from bench.operator_size.kubelet import address
from bench.operator_size.measured import READS, WRITES, Stretch, requests
from bench.operator_size.processes import slope
from bench.operator_size.resources import busy_parts, idle_state
from bench.operator_size.workers import Worker, converse
from kvtide_operator.autoscale.worker_state import WorkerState
from kvtide_operator.reconcile.looks import is_busy


@pytest.fixture
def worker() -> Worker:
    return Worker({**idle_state(3), "modelName": "model-0001", "startedAt": 1.0})


def busy(idle: dict[str, Any]) -> dict[str, Any]:
    return {**idle, **{part: {**idle[part], **values} for part, values in busy_parts(idle).items()}}


@asynccontextmanager
async def connected(worker: Worker) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    server = await asyncio.start_server(functools.partial(converse, worker), "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        yield reader, writer
        writer.close()


async def answer(reader: asyncio.StreamReader) -> bytes:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    assert head.startswith("HTTP/1.1 200 OK")
    return await reader.readexactly(int(head.split("content-length: ")[1].split("\r\n")[0]))


@pytest.mark.parametrize("piece", [1, 7, 10_000])
async def test_a_simulated_worker_answers_requests_however_they_come(worker: Worker, piece: int) -> None:
    body = b'{"batchLimit": 5}'
    said = b"PUT /v1/limits HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    said += b"GET /v1/state HTTP/1.1\r\nhost: x\r\n\r\n"
    async with connected(worker) as (reader, writer):
        for begin in range(0, len(said), piece):
            writer.write(said[begin : begin + piece])
            await asyncio.sleep(0)
        assert json.loads(await answer(reader))["batchLimit"] == 5
        state = WorkerState.model_validate_json(await answer(reader))
    assert (state.model_name, state.limits.batch_limit, is_busy(state)) == ("model-0001", 5, False)


async def test_an_idle_simulated_worker_keeps_its_answer_back_until_it_is_busy(worker: Worker) -> None:
    async with connected(worker) as (reader, writer):
        writer.write(b"GET /v1/state?idleSeconds=0.05 HTTP/1.1\r\n\r\n")
        assert not is_busy(WorkerState.model_validate_json(await answer(reader)))
        writer.write(b"GET /v1/state?idleSeconds=30 HTTP/1.1\r\n\r\n")
        heard = asyncio.create_task(answer(reader))
        await asyncio.sleep(0.05)
        assert not heard.done()
        worker.replace(busy(worker.state))
        async with asyncio.timeout(5):
            assert is_busy(WorkerState.model_validate_json(await heard))


def test_a_busy_worker_is_busy_by_more_than_the_operator_lets_pass(worker: Worker) -> None:
    state = WorkerState.model_validate({**busy(worker.state), "sampledAt": 2.0})
    assert is_busy(state)
    assert state.kv.live_tokens > 0.85 * state.kv.capacity_tokens


def test_each_worker_has_an_address_of_its_own() -> None:
    found = {address(number) for number in range(10_000)}
    assert len(found) == 10_000
    assert all(0 < int(part) < 255 for one in found for part in one.split("."))


async def test_requests_are_counted_by_verb_and_resource(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scrape(_: object) -> str:
        return """# TYPE apiserver_request_total counter
apiserver_request_total{code="200",resource="pods",subresource="",verb="GET"} 5
apiserver_request_total{code="404",resource="pods",subresource="",verb="GET"} 2
apiserver_request_total{code="200",resource="llmdeployments",subresource="status",verb="APPLY"} 1e+03
"""

    monkeypatch.setattr(measured, "scrape", scrape)
    found = Stretch(seconds=120.0, requests=await requests(None))  # type: ignore[arg-type]
    assert found.requests == {("GET", "pods"): 7, ("APPLY", "llmdeployments/status"): 1000}
    assert (found.a_minute(READS), found.a_minute(WRITES), found.a_minute(WRITES, ("llmdeployments/status",))) == (
        3.5,
        500.0,
        0.0,
    )


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [([3.0, 1.0, 2.0], 0.5, 2.0), ([float(n) for n in range(1, 101)], 0.95, 95.0), ([7.0], 0.95, 7.0)],
)
def test_a_percentile_is_a_value_that_was_measured(values: list[float], share: float, expected: float) -> None:
    assert percentile(values, share) == expected


@pytest.mark.parametrize(
    ("points", "expected"),
    [([(0.0, 5.0), (1.0, 7.0), (2.0, 9.0)], 2.0), ([(0.0, 5.0)], 0.0), ([(0.0, 1.0), (1.0, 4.0), (2.0, 1.0)], 0.0)],
)
def test_the_slope_is_that_of_the_line_through_the_points(points: list[tuple[float, float]], expected: float) -> None:
    assert slope(points) == pytest.approx(expected)
