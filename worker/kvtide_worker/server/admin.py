"""The admin port: what the operator reads and sets. Not for clients of the model, so it has a token of its own."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from kvtide_worker.engine.messages import ReencodeError
from kvtide_worker.server.catalog import VERSION
from kvtide_worker.server.engine_client import EngineFailure
from kvtide_worker.server.errors import ApiError, engine_failed
from kvtide_worker.server.protocol import LimitsRequest
from kvtide_worker.server.service import Service
from kvtide_worker.server.state_report import limits_report, state_report

# How long an answer may be kept back: less than what stands between us and the operator keeps a silent connection for.
_IDLE_MOST_S = 30.0


def router(service: Service, device: str) -> APIRouter:
    """The endpoints, over a service."""
    routes = APIRouter(prefix="/v1")

    @routes.get("/state")
    async def state(idleSeconds: Annotated[float, Query(ge=0, le=_IDLE_MOST_S)] = 0.0) -> dict[str, Any]:
        """An idle worker's, once it has a request, at the latest after `idleSeconds`."""
        await service.until_busy(idleSeconds)
        return state_report(
            service.state,
            service.model.plan,
            version=VERSION,
            model_name=service.model.name,
            device=device,
            ready=service.ready,
            draining=service.lifecycle.draining,
            started_at=service.started_at,
            report=service.report,
            latency=service.latency.recent,
            limits=limits_report(service.state, service.limits, service.capacity),
        )

    @routes.put("/limits")
    async def limits(body: LimitsRequest) -> dict[str, int | bool]:
        """The limits in force afterwards: the engine takes a batch limit and a precision between two steps, the others
        hold at once. A batch limit is one of the precision before."""
        most, asked = service.state.max_batch_limit, body.batchLimit
        if asked is not None and asked > most:
            raise ApiError(
                400,
                f"batchLimit {asked} is more than the {most} that this worker was planned for; write 1 to {most}",
                param="batchLimit",
                code="invalid_value",
            )
        if body.kvPrecision is not None:
            await _reencode(service, body.kvPrecision)
        service.limits = body.changed(service.limits)
        if asked is not None:
            await service.engine.set_batch_limit(asked)
        return limits_report(service.state, service.limits, service.capacity)

    @routes.post("/drain", status_code=202)
    async def drain() -> dict[str, bool]:
        """Begins what SIGTERM begins, without the exit."""
        service.begin_drain(announced=True)
        return {"draining": True}

    return routes


_STATUS = {ReencodeError.NEVER: 400, ReencodeError.NOT_NOW: 409, ReencodeError.FAILED: 500}


async def _reencode(service: Service, precision: str) -> None:
    """Have the pool re-encoded. Raises ApiError 400 for what it cannot become, 409 for what it cannot become now."""
    try:
        done = await service.engine.reencode(precision)
    except EngineFailure as failure:
        raise engine_failed(str(failure), failure.kind) from failure
    if done.error is not None and done.kind is not None:
        raise ApiError(_STATUS[done.kind], done.error, param="kvPrecision", code=done.kind.value)
