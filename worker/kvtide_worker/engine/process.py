"""The engine process: commands in, events out, one step loop between them.

The server imports this module to spawn it: torch is imported by `run_engine`, not here.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING

import msgspec
import zmq

from kvtide_sizing.errors import SizingError
from kvtide_worker.engine.cannot_reencode import CannotReencode
from kvtide_worker.engine.config import EngineConfig
from kvtide_worker.engine.messages import (
    AbortRequest,
    AddRequests,
    CalibrationTokens,
    Command,
    DescribePool,
    Event,
    Failed,
    FinishReason,
    LoadProgress,
    LoadReport,
    Ready,
    Reencode,
    Reencoded,
    SetLimits,
    SetVocabulary,
    Shutdown,
    StepOutputs,
    TokenOutput,
)

if TYPE_CHECKING:
    from kvtide_worker.engine.engine import Engine

# While idle, state is sent this often: a reader calls it stale after a few seconds without.
_IDLE_STATE_SECONDS = 0.5
_LAST_WORDS_MILLISECONDS = 2000

logger = logging.getLogger(__name__)


def run_engine(config: EngineConfig, command_endpoint: str, event_endpoint: str) -> None:
    """Load the model, serve until `Shutdown`, then return; the target of `multiprocessing`'s spawn.

    command_endpoint, event_endpoint: ZeroMQ addresses (`ipc://…`) that the server has bound: it PUSHes `Command`s to
    the first and PULLs `Event`s from the second, each message one msgpack-encoded union member. Sends LoadProgress,
    then Ready, or Failed and exits with status 1. Ends by itself when its parent process is gone.
    """
    started = time.monotonic()
    # Ctrl-C reaches the whole process group; the server drains first, then sends Shutdown.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Read when torch loads OpenMP. Threads that spin between two operations starve each other as soon as the cores are
    # shared: measured with 10 processes on 2 cores, a step took 16 times longer than with threads that sleep.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Read when torch loads oneDNN, which keeps the code that it generates for each shape of a product in two caches of
    # 1024, and a step has any number of rows up to its budget. Measured with SmolLM2's products in every such shape:
    # 730 MiB are kept, and 20 with these, in the same time.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "32")
    os.environ.setdefault("LRU_CACHE_CAPACITY", "32")
    # Read when torch loads its profiler, which measures a step: it writes about itself to standard error otherwise.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    _end_with_parent()
    pipes = _Pipes(command_endpoint, event_endpoint)
    try:
        engine, report = _load(config, pipes)
        pipes.send(Ready(engine.state(), time.monotonic() - started, report))
        _serve(engine, pipes)
    except Exception as error:
        known = isinstance(error, SizingError)
        if not known:
            logger.exception("the engine failed")
        pipes.send(Failed(str(error) if known else f"{type(error).__name__}: {error}"))
        sys.exit(1)
    finally:
        pipes.close()


class _Pipes:
    """Commands from the server, events to it."""

    def __init__(self, command_endpoint: str, event_endpoint: str) -> None:
        self._context = zmq.Context()
        self._commands = self._context.socket(zmq.PULL)
        self._events = self._context.socket(zmq.PUSH)
        for socket in (self._commands, self._events):
            # No bound on the queues: a server that is slow to read must not stop the steps of the others' requests.
            socket.set_hwm(0)
        self._commands.connect(command_endpoint)
        self._events.connect(event_endpoint)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)

    def send(self, event: Event) -> None:
        """Send without waiting."""
        self._events.send(self._encoder.encode(event))

    def receive(self, timeout_seconds: float) -> list[Command]:
        """All commands that are there; where there is none, the first one within the timeout."""
        commands = []
        if self._commands.poll(round(timeout_seconds * 1000)):
            while self._commands.poll(0):
                commands.append(self._decoder.decode(self._commands.recv()))
        return commands

    def receive_calibration(self) -> CalibrationTokens:
        """The server's first command; it comes once the tokenizer is read."""
        command = self._decoder.decode(self._commands.recv())
        assert isinstance(command, CalibrationTokens), "nothing else is sent before the engine is ready"
        return command

    def close(self) -> None:
        """Give what was sent a moment to arrive, then let go."""
        self._context.destroy(linger=_LAST_WORDS_MILLISECONDS)


def _load(config: EngineConfig, pipes: _Pipes) -> tuple[Engine, LoadReport]:
    pipes.send(LoadProgress("starting torch"))
    from kvtide_worker.engine.load import load_engine

    return load_engine(config, lambda stage: pipes.send(LoadProgress(stage)), pipes.receive_calibration)


def _serve(engine: Engine, pipes: _Pipes) -> None:
    while True:
        for command in pipes.receive(0 if engine.has_work else _IDLE_STATE_SECONDS):
            if isinstance(command, Shutdown):
                aborted = [TokenOutput(name, [], FinishReason.ABORT) for name in engine.request_ids]
                for output in aborted:
                    engine.abort(output.request_id)
                pipes.send(StepOutputs(aborted, engine.state()))
                return
            if isinstance(command, DescribePool):
                pipes.send(engine.pool_map())
            elif isinstance(command, Reencode):
                pipes.send(_reencode(command, engine, _Heartbeat(engine, pipes)))
            else:
                _apply(command, engine)
        outputs = engine.step()
        pipes.send(StepOutputs(outputs, engine.state()))


def _reencode(command: Reencode, engine: Engine, heartbeat: _Heartbeat) -> Reencoded:
    try:
        engine.reencode(command.precision, heartbeat)
    except CannotReencode as error:
        return Reencoded(engine.state(), str(error), error.kind)
    return Reencoded(engine.state())


class _Heartbeat:
    """Tells the server that the engine is alive where something takes longer than a step."""

    def __init__(self, engine: Engine, pipes: _Pipes) -> None:
        self._engine, self._pipes = engine, pipes
        self._last = time.monotonic()

    def __call__(self) -> None:
        now = time.monotonic()
        if now - self._last >= _IDLE_STATE_SECONDS:
            self._last = now
            self._pipes.send(StepOutputs([], self._engine.state()))


def _apply(command: CalibrationTokens | AddRequests | SetVocabulary | AbortRequest | SetLimits, engine: Engine) -> None:
    match command:
        case CalibrationTokens():
            pass  # the keys of this engine are stored as they come
        case AddRequests(requests):
            for request in requests:
                engine.add(request)
        case SetVocabulary():
            engine.set_vocabulary(command)
        case AbortRequest(request_id):
            engine.abort(request_id)
        case SetLimits(batch_limit):
            engine.set_batch_limit(batch_limit)


def _end_with_parent() -> None:
    """Exit at once when the parent dies, even in the middle of loading: nobody would ever read the events."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
