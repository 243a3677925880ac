"""The two HTTP listeners. They live as long as we say: signals, and the end of streams, are not uvicorn's to decide."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

_BACKLOG = 2048

# At the end only answers are open that a client does not read; they do not hold the process.
_UNREAD_S = 3.0


class PortInUse(OSError):
    """Nobody can listen there; the message says where and why."""


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Port 0 takes a free one. Raises PortInUse."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise PortInUse(f"cannot listen on {host}:{port}: {error.strerror}; choose another port") from error
    listener.setblocking(False)
    return listener


class HttpServer:
    """One app on one socket."""

    def __init__(self, app: ASGIApp, listener: socket.socket) -> None:
        self._listener = listener
        config = uvicorn.Config(
            app,
            backlog=_BACKLOG,
            lifespan="off",
            access_log=False,
            log_level="warning",
            timeout_keep_alive=75,
        )
        self._server = _Server(config)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to listen."""
        self._task = asyncio.get_running_loop().create_task(self._server.serve(sockets=[self._listener]))

    async def stop(self) -> None:
        """Close the socket, let responses go out, and return."""
        if self._task is None:
            return
        self._server.should_exit = True
        done, _ = await asyncio.wait([self._task], timeout=_UNREAD_S)
        if not done:
            self._server.force_exit = True
            # From Python 3.12.1 on uvicorn would wait for them all the same.
            for connection in list(self._server.server_state.connections):
                connection.transport.abort()
            await self._task


class _Server(uvicorn.Server):
    """uvicorn's server without its signal handlers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the worker."""
        yield
