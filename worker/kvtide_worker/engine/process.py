"""The engine process: commands in, events out, one step loop between them."""

from __future__ import annotations

from kvtide_worker.engine.config import EngineConfig


def run_engine(config: EngineConfig, command_endpoint: str, event_endpoint: str) -> None:
    """Load the model, serve until `Shutdown`, then return; the target of `multiprocessing`'s spawn.

    command_endpoint, event_endpoint: ZeroMQ addresses (`ipc://…`) that the server has bound: it PUSHes `Command`s to
    the first and PULLs `Event`s from the second, each message one msgpack-encoded union member.
    """
    raise NotImplementedError
