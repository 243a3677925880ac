"""GET /v1/models and /version: what is here."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from fastapi import APIRouter

from kvtide_worker.server.service import ServedModel, Service

VERSION = version("kvtide")


def models_router(service: Service) -> APIRouter:
    """The model endpoints, over a service."""
    routes = APIRouter()

    @routes.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [_card(service.model)]}

    @routes.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        return _card(service.check_model(name))

    return routes


def version_router() -> APIRouter:
    """The server's version."""
    routes = APIRouter()

    @routes.get("/version")
    async def server_version() -> dict[str, str]:
        return {"version": VERSION}

    return routes


def _card(model: ServedModel) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": model.created_at,
        "owned_by": "kvtide",
        "max_model_len": model.plan.max_context_tokens,
    }
