"""The server's end of the pipe where there is nobody at the other end any more."""

import asyncio
import time

import pytest

from kvtide_worker.engine.config import EngineConfig
from kvtide_worker.server.engine_client import EngineClient, EngineFailure


def test_the_map_of_an_engine_that_has_ended_is_refused_at_once() -> None:
    async def ask() -> float:
        client = EngineClient(EngineConfig(model_uri="file:///nowhere", plan={}), lambda _: None)
        client.failure = "the engine process ended (killed by SIGKILL; out of memory?)"
        began = time.monotonic()
        try:
            with pytest.raises(EngineFailure, match="killed by SIGKILL"):
                await client.pool_map()
            return time.monotonic() - began
        finally:
            await client.stop()

    assert asyncio.run(ask()) < 5  # not after the 30 s that a live engine may take
