"""GET /health, /ready and /metrics: for the kubelet and for Prometheus."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from kvtide_worker.server.service import Service

_NOT_NOW: dict[int | str, dict[str, Any]] = {503: {"description": "Not now; `status` says why."}}


def router(service: Service) -> APIRouter:
    """The endpoints, over a service."""
    routes = APIRouter()

    @routes.get("/health", responses=_NOT_NOW)
    async def health() -> Response:
        """200 while the worker can go on, 503 where only a restart helps."""
        trouble = service.trouble
        return JSONResponse({"status": trouble or "ok"}, status_code=503 if trouble else 200)

    @routes.get("/ready", responses=_NOT_NOW)
    async def ready() -> Response:
        """200 while traffic should come: weights loaded, one token generated, not draining."""
        if service.ready:
            return JSONResponse({"status": "ready"})
        phase = service.lifecycle.phase(time.monotonic())
        why = service.trouble or ("draining" if service.lifecycle.draining else f"{phase}: {service.stage}")
        return JSONResponse({"status": why}, status_code=503)

    @routes.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        return Response(generate_latest(service.registry), media_type=CONTENT_TYPE_LATEST)

    return routes
