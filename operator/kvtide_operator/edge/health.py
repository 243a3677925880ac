"""The operator's two small HTTP servers: metrics for Prometheus, health for the kubelet.

Both run on the operator's own event loop, so that a loop that hangs is seen by a probe that times out.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

Heartbeat = Callable[[], float]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Health:
    """What liveness and readiness judge.

    beats: by name, when a loop last went round (monotonic seconds), and how long it may take at most
    ready: set once the API server has answered and the CRD is served; a standby is ready too
    """

    beats: dict[str, tuple[Heartbeat, float]]
    ready: bool = False

    def late(self) -> list[str]:
        """Loops that have not gone round in time."""
        now = time.monotonic()
        return [
            f"{name}: silent for {now - beat():.0f} s"
            for name, (beat, limit_s) in self.beats.items()
            if now - beat() > limit_s
        ]


async def serve_health(health: Health, port: int) -> web.AppRunner:
    """GET /healthz and GET /readyz."""

    async def healthz(_: web.Request) -> web.Response:
        late = health.late()
        return web.Response(text="\n".join(late) or "ok", status=503 if late else 200)

    async def readyz(_: web.Request) -> web.Response:
        text = "ok" if health.ready else "the API server has not answered, or does not serve LLMDeployments"
        return web.Response(text=text, status=200 if health.ready else 503)

    return await _serve({"/healthz": healthz, "/readyz": readyz}, port)


async def serve_metrics(registry: CollectorRegistry, port: int) -> web.AppRunner:
    """GET /metrics."""

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    return await _serve({"/metrics": metrics}, port)


async def _serve(routes: dict[str, Handler], port: int) -> web.AppRunner:
    application = web.Application()
    application.add_routes([web.get(path, handler) for path, handler in routes.items()])
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, port=port).start()
    return runner
