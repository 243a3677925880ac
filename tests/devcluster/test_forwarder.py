"""Ports on loopback: where they lead, and what passes through them."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from devcluster import forwarder
from devcluster.relay import relay

SERVICE = {"spec": {"clusterIP": "10.96.7.7", "ports": [{"port": 80, "name": "http"}, {"port": 9000}]}}


@pytest.mark.parametrize(
    ("port", "address"), [("80", "10.96.7.7:80"), ("http", "10.96.7.7:80"), ("9000", "10.96.7.7:9000")]
)
def test_a_service_s_port_goes_by_number_or_name(port: str, address: str) -> None:
    assert forwarder.service_address(SERVICE, port) == address


def test_an_unknown_port_is_answered_with_those_there_are() -> None:
    with pytest.raises(RuntimeError, match=r"no port 81; it has 80 \(http\), 9000 \(unnamed\)"):
        forwarder.service_address(SERVICE, "81")


def test_a_headless_service_is_refused() -> None:
    with pytest.raises(RuntimeError, match="headless"):
        forwarder.service_address({"spec": {"clusterIP": "None", "ports": []}}, "80")


def test_a_taken_port_gives_way_to_a_free_one() -> None:
    with forwarder.open_port(0) as taken:
        port = taken.getsockname()[1]
        with forwarder.open_port(port) as other:
            assert other.getsockname()[0] == "127.0.0.1"
            assert other.getsockname()[1] != port


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def relayed(handler: Handler) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    server = await asyncio.start_server(handler, "127.0.0.1", 0)
    listener = forwarder.open_port(0)
    host, port = server.sockets[0].getsockname()
    running = asyncio.create_task(relay(listener, host, port))
    async with server:
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        yield reader, writer
        writer.close()
        running.cancel()


def reset(writer: asyncio.StreamWriter) -> None:
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def test_both_directions_end_by_themselves() -> None:
    async def answer_after_the_whole_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"got " + await reader.read())
        writer.close()

    async with relayed(answer_after_the_whole_request) as (reader, writer):
        writer.write(b"question")
        writer.write_eof()
        assert await reader.read() == b"got question"


async def test_a_connection_that_breaks_inside_breaks_outside() -> None:
    async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        reset(writer)

    async with relayed(break_off) as (reader, writer):
        writer.write(b"?")
        with pytest.raises(ConnectionResetError):
            await reader.read()


async def test_a_client_that_breaks_off_a_stream_breaks_it_inside() -> None:
    broken = asyncio.Event()

    async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"the answer begins")
        with contextlib.suppress(ConnectionResetError):
            await reader.read()
        broken.set()

    async with relayed(stream) as (reader, writer):
        await reader.readexactly(1)
        reset(writer)
        async with asyncio.timeout(5):
            await broken.wait()
