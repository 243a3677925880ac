"""The benchmark's own client of the API server: plain paths, without the retries of the operator's."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator
from typing import Any

import aiohttp

from bench.operator_size.control_plane import ControlPlane

Json = dict[str, Any]
PODS = "/api/v1/pods"
RESOURCES = "/apis/serving.kvtide.dev/v1alpha1"
DEPLOYMENTS = "/apis/apps/v1/deployments"
MERGE = "application/merge-patch+json"


class Refused(Exception):
    """The API server said no."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"HTTP {status}: {message}")
        self.status = status


class Api:
    """One connection pool."""

    def __init__(self, plane: ControlPlane) -> None:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self._session = aiohttp.ClientSession(
            plane.server,
            headers={"Authorization": f"Bearer {plane.token}"},
            connector=aiohttp.TCPConnector(ssl=context, limit=0),
            timeout=aiohttp.ClientTimeout(total=None, connect=10),
            read_bufsize=2**21,
        )

    async def close(self) -> None:
        """Closes the pool."""
        await self._session.close()

    async def call(self, method: str, path: str, body: Json | None = None, kind: str = "application/json") -> Json:
        """One request. Raises Refused."""
        data = None if body is None else json.dumps(body)
        async with self._session.request(method, path, data=data, headers={"Content-Type": kind}) as response:
            content = await response.read()
            if response.status >= 300:
                raise Refused(response.status, content.decode(errors="replace")[:300])
            answer: Json = json.loads(content)
            return answer

    async def watch(self, path: str, selector: str = "") -> AsyncIterator[Json]:
        """Events of what there is and what comes. Where the server ends it, all that there is comes again."""
        query = {"watch": "true", "timeoutSeconds": "7200", **({"labelSelector": selector} if selector else {})}
        while True:
            async with self._session.get(path, params=query) as response:
                rest = b""
                async for chunk in response.content.iter_any():
                    *lines, rest = (rest + chunk).split(b"\n")
                    for event in map(json.loads, lines):
                        if event["type"] != "ERROR":
                            yield event
