"""The two ASGI apps: the API on one port, the admin endpoints on the other."""

from __future__ import annotations

from fastapi import Depends, FastAPI
from starlette.types import ASGIApp

from kvtide_worker.server import admin, catalog, chat, completions, debug, errors, probes, tokenization
from kvtide_worker.server.answer_schemas import ERRORS
from kvtide_worker.server.auth import BearerToken
from kvtide_worker.server.service import Service
from kvtide_worker.server.traffic import Traffic


def api_app(service: Service, api_key: BearerToken | None) -> ASGIApp:
    """The OpenAI-compatible API. api_key: what clients must send; probes and scrapes need none."""
    app = FastAPI(title="KVTide", version=catalog.VERSION)
    errors.install(app)
    guard = [Depends(api_key)] if api_key else []
    for guarded in (
        chat.router(service),
        completions.router(service),
        tokenization.router(service),
        catalog.models_router(service),
    ):
        app.include_router(guarded, dependencies=guard, responses=ERRORS)
    app.include_router(probes.router(service))
    app.include_router(catalog.version_router())
    return Traffic(app, service)


def admin_app(service: Service, token: BearerToken, device: str) -> ASGIApp:
    """The admin endpoints, all of them behind the token."""
    app = FastAPI(title="KVTide admin", openapi_url=None, dependencies=[Depends(token)])
    errors.install(app)
    app.include_router(admin.router(service, device))
    app.include_router(debug.router(service))
    return app
