"""python -m bench.operator_size.workers: simulated workers, one process for all of them.

Each line of the input is a JSON object: {"ip": …, "state": {…}} makes or replaces the worker of that address, whose
`GET /v1/state` then says `state` with `sampledAt` of now. With `?idleSeconds=N` one without requests says it once it
has some, at the latest after so long, as real ones do. A line without `state` ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import functools
import json
import re
import sys
import threading
import time
from typing import Any

from kvtide_operator.api.names import ADMIN_PORT, HTTP_PORT

ANSWER = b'{"object":"text_completion","choices":[{"text":" a","index":0}],"usage":{"completion_tokens":1}}'


class Worker:
    """The state of one, serialized once for each change."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.servers: list[asyncio.Server] = []
        self._replaced = asyncio.Event()
        self.replace(state)

    def replace(self, state: dict[str, Any]) -> None:
        self.state = state
        self._before, self._after = json.dumps({**state, "sampledAt": "@"}).encode().split(b'"@"')
        self._replaced.set()
        self._replaced = asyncio.Event()

    async def until_busy(self, within_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while not (self.state["requests"]["running"] or self.state["requests"]["waiting"]):
                    await self._replaced.wait()

    def answer(self, path: bytes, body: bytes) -> bytes:
        if path == b"/v1/state":
            return self._before + b"%.3f" % time.time() + self._after
        if path == b"/v1/limits":
            limits = json.loads(body)
            self.replace({**self.state, "limits": {**self.state["limits"], **limits}})
            return json.dumps(self.state["limits"]).encode()
        if path == b"/v1/completions":
            counters = self.state["counters"]
            grown = {**counters, "generationTokens": counters["generationTokens"] + 1}
            self.replace({**self.state, "counters": grown})
            return ANSWER
        return b'{"status":"ok"}'


async def converse(worker: Worker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """As much of HTTP/1.1 as the operator speaks: requests with Content-Length, one after the other, kept alive."""
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
            body = await reader.readexactly(int(length[1]) if length else 0)
            path, _, query = head.split(b" ", 2)[1].partition(b"?idleSeconds=")
            if query:
                await worker.until_busy(float(query))
            answer, date = worker.answer(path, body), email.utils.formatdate(usegmt=True).encode()
            writer.write(
                b"HTTP/1.1 200 OK\r\ndate: %b\r\nserver: uvicorn\r\ncontent-length: %d\r\n"
                b"content-type: application/json\r\n\r\n%b" % (date, len(answer), answer)
            )
    writer.close()


async def apply(workers: dict[str, Worker], said: dict[str, Any]) -> None:
    """One line of the input."""
    ip, state = said["ip"], said.get("state")
    if state is None:
        gone = workers.pop(ip, None)
        for server in gone.servers if gone else ():
            server.close()
    elif ip in workers:
        workers[ip].replace(state)
    else:
        worker = workers[ip] = Worker(state)
        for port in (HTTP_PORT, ADMIN_PORT):
            worker.servers.append(await asyncio.start_server(functools.partial(converse, worker), ip, port))


async def main() -> None:
    """Until the input ends."""
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[str] = asyncio.Queue()

    def read() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(lines.put_nowait, line)
        loop.call_soon_threadsafe(lines.put_nowait, "")

    threading.Thread(target=read, daemon=True).start()
    workers: dict[str, Worker] = {}
    while line := await lines.get():
        await apply(workers, json.loads(line))


if __name__ == "__main__":
    asyncio.run(main())
