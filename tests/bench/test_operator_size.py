"""The benchmark of the operator's size: what it simulates is what workers say, and what it counts is right."""

import asyncio
import json

import pytest

from bench.operator_size import measured
from bench.operator_size.__main__ import percentile
from bench.operator_size.kubelet import address
from bench.operator_size.measured import READS, WRITES, Stretch, requests
from bench.operator_size.processes import slope
from bench.operator_size.resources import busy_parts, idle_state
from bench.operator_size.workers import Connection, Worker
from kvtide_operator.autoscale.worker_state import WorkerState
from kvtide_operator.reconcile.looks import is_busy


class Wire(asyncio.Transport):
    """What was written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)


@pytest.fixture
def worker() -> Worker:
    return Worker({**idle_state(3), "modelName": "model-0001", "startedAt": 1.0})


@pytest.mark.parametrize("piece", [1, 7, 10_000])
def test_a_simulated_worker_answers_requests_however_they_come(worker: Worker, piece: int) -> None:
    wire = Wire()
    connection = Connection(worker)
    connection.connection_made(wire)
    body = b'{"batchLimit": 5}'
    said = b"PUT /v1/limits HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    said += b"GET /v1/state HTTP/1.1\r\nhost: x\r\n\r\n"
    for begin in range(0, len(said), piece):
        connection.data_received(said[begin : begin + piece])
    first, second = wire.written.split(b"HTTP/1.1 200 OK\r\n")[1:]
    assert json.loads(first.partition(b"\r\n\r\n")[2])["batchLimit"] == 5
    state = WorkerState.model_validate_json(second.partition(b"\r\n\r\n")[2])
    assert (state.model_name, state.limits.batch_limit, is_busy(state)) == ("model-0001", 5, False)


def test_a_busy_worker_is_busy_by_more_than_the_operator_lets_pass(worker: Worker) -> None:
    idle = worker.state
    busy = {**idle, **{part: {**idle[part], **values} for part, values in busy_parts(idle).items()}, "sampledAt": 2.0}
    state = WorkerState.model_validate(busy)
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
