"""What passes on the way in: open requests are counted, and turned away once the worker no longer takes any."""

from __future__ import annotations

import time

from fastapi.responses import JSONResponse
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvtide_worker.server.errors import unavailable
from kvtide_worker.server.service import Service

# Probes and scrapes go on to the end: they tell others that this is one.
_ALWAYS_OPEN = frozenset({"/health", "/ready", "/metrics", "/version"})


# A body is parsed as a whole, and a prompt of a million tokens is far below this.
MAX_BODY_BYTES = 4 << 20


class Traffic:
    """ASGI middleware around the API's app.

    While the worker drains every response carries `Connection: close`, so that clients and proxies with open
    connections go elsewhere with the next request.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 503."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        lifecycle = self._service.lifecycle

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start" and lifecycle.draining:
                MutableHeaders(scope=message)["Connection"] = "close"
            await send(message)

        if scope["path"] in _ALWAYS_OPEN:
            await self._app(scope, receive, send_marked)
        elif lifecycle.draining and not lifecycle.accepts(time.monotonic()):
            refused = unavailable("this worker is being stopped; send the request again, another one takes it")
            response = JSONResponse(refused.body, status_code=refused.status, headers=refused.headers)
            await response(scope, receive, send_marked)
        else:
            self._service.open_requests += 1
            try:
                await self._app(scope, _bounded(receive), send_marked)
            finally:
                self._service.open_requests -= 1


def _bounded(receive: Receive) -> Receive:
    received = 0

    async def receive_bounded() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > MAX_BODY_BYTES:
            # FastAPI reads the body, and lets this kind of exception through.
            raise HTTPException(413, f"the body has more than {MAX_BODY_BYTES} bytes")
        return message

    return receive_bounded
