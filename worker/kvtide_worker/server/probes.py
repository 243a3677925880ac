"""GET /health, /ready and /metrics: for the kubelet and for Prometheus."""

from __future__ import annotations

import time

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from kvtide_worker.server.service import Service


def router(service: Service) -> APIRouter:
    """The endpoints, over a service."""
    routes = APIRouter()

    @routes.get("/health")
    async def health() -> Response:
        """200 while the worker can go on, 503 where only a restart helps."""
        trouble = service.trouble
        return JSONResponse({"status": trouble or "ok"}, status_code=503 if trouble else 200)

    @routes.get("/ready")
    async def ready() -> Response:
        """200 while traffic should come: weights loaded, one token generated, not draining."""
        if service.ready:
            return JSONResponse({"status": "ready"})
        phase = service.lifecycle.phase(time.monotonic())
        why = service.trouble or ("draining" if service.lifecycle.draining else f"{phase}: {service.stage}")
        return JSONResponse({"status": why}, status_code=503)

    @routes.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(service.registry), media_type=CONTENT_TYPE_LATEST)

    return routes
