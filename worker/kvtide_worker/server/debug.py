"""`GET /debug/kv`: the pool's map, for people. On the admin port, since it tells of other clients' requests."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from kvtide_worker.engine.messages import PoolMap, SequenceMap
from kvtide_worker.server.engine_client import EngineFailure
from kvtide_worker.server.errors import engine_failed
from kvtide_worker.server.service import Service

_LEGEND = {"#": "one sequence has it", "&": "several sequences share it", "c": "cached, can be taken", ".": "free"}


def router(service: Service) -> APIRouter:
    """The endpoint, over a service."""
    routes = APIRouter(prefix="/debug")

    @routes.get("/kv")
    async def kv() -> dict[str, Any]:
        try:
            return map_report(await service.engine.pool_map())
        except EngineFailure as error:
            raise engine_failed(str(error), error.kind) from error

    return routes


def map_report(drawn: PoolMap) -> dict[str, Any]:
    """The map as JSON. `blocks` has one character a block, in the order of the ids; `legend` says what each means."""
    return {
        "blockSizeTokens": drawn.block_size_tokens,
        "blockTables": drawn.block_tables,
        "numBlocks": len(drawn.drawn),
        "legend": _LEGEND,
        "blocks": drawn.drawn,
        "sequences": [_sequence_report(sequence) for sequence in drawn.sequences],
    }


def _sequence_report(sequence: SequenceMap) -> dict[str, Any]:
    return {
        "id": sequence.request_id,
        "state": "running" if sequence.running else "waiting",
        "priority": sequence.priority,
        "preemptions": sequence.preemptions,
        "promptTokens": sequence.prompt_tokens,
        "outputTokens": sequence.output_tokens,
        "writtenTokens": sequence.written_tokens,
        "cachedTokens": sequence.cached_tokens,
        "tables": [
            {"firstBlock": first, "blocks": blocks, "recentBlocks": recent}
            for first, blocks, recent in zip(
                sequence.first_blocks, sequence.blocks, sequence.recent_blocks, strict=True
            )
        ],
    }
