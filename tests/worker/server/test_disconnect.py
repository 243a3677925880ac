"""A client that goes away frees its blocks at once, whatever it had asked for."""

import json
import socket
from urllib.parse import urlsplit

import httpx2
import pytest

from tests.worker.server.harness import Server, eventually

# What is left of a step that had begun, and the next report of the state.
AT_ONCE_S = 1.0


def raw_request(server: Server, body: dict) -> socket.socket:
    """A request whose connection is ours to cut."""
    address = urlsplit(server.url)
    connection = socket.create_connection((address.hostname, address.port))
    content = json.dumps(body).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(content)}"
    )
    connection.sendall(head.encode() + b"\r\n\r\n" + content)
    return connection


@pytest.mark.parametrize("stream", [True, False])
def test_blocks_are_freed_at_once(server: Server, stream: bool) -> None:
    body = {"prompt": [[700] * 64, [800] * 64], "max_tokens": 1500, "ignore_eos": True, "stream": stream}
    connection = raw_request(server, body)
    eventually(lambda: server.state()["requests"]["running"] == 2, 10)
    assert server.state()["kv"]["liveBlocks"] >= 8  # two prompts of four blocks
    connection.close()
    eventually(lambda: server.state()["kv"]["liveBlocks"] == 0, AT_ONCE_S)
    assert server.state()["requests"] == {
        "running": 0, "waiting": 0, "queuedPromptTokens": 0, "expectedOutputTokens": 0,
    }  # fmt: skip


def test_a_client_that_stops_reading_a_stream(server: Server) -> None:
    body = {"prompt": "Once", "max_tokens": 1500, "ignore_eos": True, "stream": True}
    with httpx2.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as stream:
        lines = stream.iter_lines()
        for _ in range(6):
            next(lines)
        assert server.state()["kv"]["liveBlocks"] > 0
    eventually(lambda: server.state()["kv"]["liveBlocks"] == 0, AT_ONCE_S)


def test_a_stop_string_frees_them_too(server: Server) -> None:
    body = {"prompt": "1 2 3 4 5 6", "max_tokens": 1500, "ignore_eos": True, "temperature": 0, "stop": "9"}
    assert server.post("/v1/completions", body).json()["choices"][0]["finish_reason"] == "stop"
    eventually(lambda: server.state()["kv"]["liveBlocks"] == 0, AT_ONCE_S)
