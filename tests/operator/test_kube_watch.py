"""A watch over a real connection: events however they are cut into pieces, and every way in which it ends."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from kvtide_operator.edge import kube as edge_kube
from kvtide_operator.edge.kube import ApiError, Kube
from tests.operator.connection import connected

EVENTS: list[dict[str, Any]] = [
    {"type": "ADDED", "object": {"metadata": {"name": "a"}, "data": {"text": "x" * 200_000}}},
    {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "7"}}},
]


class Server:
    """Streams these pieces, then ends, breaks off or falls silent."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.end = "end"
        self.asked: dict[str, str] = {}

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked = dict(request.query)
        if self.end == "refuse":
            return web.json_response({"message": "too old resource version"}, status=410)
        response = web.StreamResponse()
        await response.prepare(request)
        for piece in self.pieces:
            await response.write(piece)
        if self.end == "break":
            assert request.transport is not None
            request.transport.close()
        elif self.end == "silence":
            await asyncio.sleep(60)
        return response


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
async def kube(server: Server) -> AsyncIterator[Kube]:
    async with connected(server.answer) as kube:
        yield kube


async def told(kube: Kube) -> list[dict[str, Any]]:
    return [event async for event in kube.watch("ConfigMap", None, "a=b", "5")]


@pytest.mark.parametrize("size", [1000, 65_536, 10**9])
async def test_events_are_lines_however_they_are_cut_and_however_long(server: Server, kube: Kube, size: int) -> None:
    stream = b"".join(json.dumps(event).encode() + b"\n" for event in EVENTS)
    server.pieces = [stream[begin : begin + size] for begin in range(0, len(stream), size)]
    assert await told(kube) == EVENTS


async def test_it_begins_where_it_is_told_and_ends_by_itself_before_long(server: Server, kube: Kube) -> None:
    assert await told(kube) == []
    lasting = int(server.asked.pop("timeoutSeconds"))
    assert 240 <= lasting <= 300
    assert server.asked == {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": "5",
        "labelSelector": "a=b",
    }


@pytest.mark.parametrize(
    ("pieces", "end", "status", "words"),
    [
        ([], "refuse", 410, "too old"),
        ([b'{"type": "ADDED", '], "break", 0, "watching /api/v1/configmaps: ClientPayloadError"),
        ([], "silence", 0, "watching /api/v1/configmaps: SocketTimeoutError"),
        ([b"<html>\n"], "end", 0, "watching /api/v1/configmaps: JSONDecodeError"),
    ],
)
async def test_whatever_ends_it_is_told_as_one_kind_of_error(
    server: Server,
    kube: Kube,
    monkeypatch: pytest.MonkeyPatch,
    pieces: list[bytes],
    end: str,
    status: int,
    words: str,
) -> None:
    monkeypatch.setattr(edge_kube, "WATCH_TIMEOUT", aiohttp.ClientTimeout(total=None, sock_read=0.2))
    server.pieces, server.end = pieces, end
    with pytest.raises(ApiError, match=words) as refusal:
        await told(kube)
    assert refusal.value.status == status
