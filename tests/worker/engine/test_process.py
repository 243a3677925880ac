"""The engine as a process of its own, spoken to as the server does."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from multiprocessing.context import SpawnProcess
from pathlib import Path

import msgspec
import pytest
import zmq

from kvtide_worker.engine.config import EngineConfig
from kvtide_worker.engine.messages import (
    AbortRequest,
    AddRequest,
    AddRequests,
    CalibrationTokens,
    Command,
    Event,
    Failed,
    FinishReason,
    LoadProgress,
    Ready,
    SetLimits,
    Shutdown,
    StepOutputs,
    TokenOutput,
)
from kvtide_worker.engine.process import run_engine
from tests.worker.engine.harness import calibration, greedy, plan_for
from tests.worker.models.tiny import save_tiny_llama

START_SECONDS = 90


class Server:
    """The server's end of the pipes."""

    def __init__(self, folder: Path, config: EngineConfig) -> None:
        self._context = zmq.Context()
        self._commands, self._events = self._context.socket(zmq.PUSH), self._context.socket(zmq.PULL)
        endpoints = f"ipc://{folder}/commands", f"ipc://{folder}/events"
        self._commands.bind(endpoints[0])
        self._events.bind(endpoints[1])
        spawn = multiprocessing.get_context("spawn")
        self.process: SpawnProcess = spawn.Process(target=run_engine, args=(config, *endpoints))
        self.process.start()

    def send(self, command: Command) -> None:
        self._commands.send(msgspec.msgpack.encode(command))

    def receive(self, timeout: float = 10) -> Event:
        assert self._events.poll(timeout * 1000), f"no event in {timeout} s"
        return msgspec.msgpack.decode(self._events.recv(), type=Event)

    def started(self) -> list[Event]:
        """All events up to Ready or Failed."""
        events = [self.receive(START_SECONDS)]
        while isinstance(events[-1], LoadProgress):
            events.append(self.receive(START_SECONDS))
        return events

    def outputs(self, request_id: str) -> list[TokenOutput]:
        """What the request gets until its end."""
        found: list[TokenOutput] = []
        while not found or found[-1].finish_reason is None:
            event = self.receive()
            assert isinstance(event, StepOutputs)
            found += [output for output in event.outputs if output.request_id == request_id]
        return found

    def idle(self) -> StepOutputs:
        """The next event without outputs."""
        while True:
            event = self.receive()
            assert isinstance(event, StepOutputs)
            if not event.outputs:
                return event

    def close(self) -> None:
        self.process.kill()
        self.process.join()
        self._context.destroy(linger=0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny_llama(folder)
    return folder


def config(model: Path, batch_limit: int = 4) -> EngineConfig:
    plan = plan_for(model, num_blocks=64, block_size=16, max_context=512, batch_limit=batch_limit)
    return EngineConfig(f"file://{model}", plan, threads=1)


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("pipes"), config(model))
    try:
        *progress, ready = server.started()
        assert progress[0] == LoadProgress("starting torch")
        assert isinstance(ready, Ready)
        assert (ready.state.num_blocks, ready.state.free_blocks, ready.state.requests) == (64, 64, 0)
        yield server
    finally:
        server.close()


def test_generates(server: Server) -> None:
    server.send(AddRequests([AddRequest("a", [5, 6, 7], greedy(6))]))
    outputs = server.outputs("a")
    assert [len(output.token_ids) for output in outputs] == [1] * 6
    assert outputs[-1].finish_reason is FinishReason.LENGTH


def test_sends_state_while_idle(server: Server) -> None:
    """At least once a second, and fresh."""
    sampled = [server.idle().state.sampled_at for _ in range(4)]
    assert all(0 < later - earlier <= 1.0 for earlier, later in itertools.pairwise(sampled))
    assert abs(sampled[-1] - time.time()) < 2


def test_tells_new_limits_at_once(server: Server) -> None:
    server.idle()
    server.send(SetLimits(2))
    states = [server.idle().state for _ in range(2)]
    assert states[-1].batch_limit == 2
    server.send(SetLimits(4))


def test_an_abort_ends_the_stream_and_frees_the_blocks(server: Server) -> None:
    server.send(AddRequests([AddRequest("long", [5, 6, 7], greedy(500))]))
    server.receive()
    server.send(AbortRequest("long"))
    state = server.idle().state
    while state.running:
        state = server.idle().state
    assert state.free_blocks == state.num_blocks


def test_ctrl_c_is_the_servers_to_answer(server: Server) -> None:
    assert server.process.pid is not None
    os.kill(server.process.pid, signal.SIGINT)
    server.send(AddRequests([AddRequest("after", [5], greedy(2))]))
    assert len(server.outputs("after")) == 2


@pytest.mark.slow
def test_shutdown_aborts_what_runs(model: Path, tmp_path: Path) -> None:
    server = Server(tmp_path, config(model, batch_limit=1))
    try:
        assert isinstance(server.started()[-1], Ready)
        for name in ("runs", "waits"):
            server.send(AddRequests([AddRequest(name, [5, 6, 7], greedy(500))]))
        server.send(Shutdown())
        ended: list[str] = []
        while len(ended) < 2:
            event = server.receive()
            assert isinstance(event, StepOutputs)
            ended += [output.request_id for output in event.outputs if output.finish_reason is FinishReason.ABORT]
        assert ended == ["runs", "waits"]
        server.process.join(10)
        assert server.process.exitcode == 0
    finally:
        server.close()


def test_waits_for_the_text_that_bases_are_fitted_to(tmp_path: Path) -> None:
    """The server has it when it has read the tokenizer, which may take longer than the weights."""
    save_tiny_llama(tmp_path / "model", head_dim=64)
    plan = plan_for(tmp_path / "model", num_blocks=64, block_size=16, max_context=256, batch_limit=4, precision="INT8")
    server = Server(tmp_path, EngineConfig(f"file://{tmp_path}/model", plan, threads=1))
    try:
        event = server.receive(START_SECONDS)
        while event != LoadProgress("fitting the key bases"):
            assert isinstance(event, LoadProgress)
            event = server.receive(START_SECONDS)
        server.send(calibration())
        assert isinstance(server.started()[-1], Ready)
        server.send(AddRequests([AddRequest("a", [5, 6, 7], greedy(3))]))
        assert len(server.outputs("a")) == 3
    finally:
        server.close()


def test_a_text_that_nothing_is_fitted_to_is_ignored(server: Server) -> None:
    server.send(CalibrationTokens([1, 2, 3], [4, 5]))
    server.send(AddRequests([AddRequest("after-text", [5], greedy(2))]))
    assert len(server.outputs("after-text")) == 2


def test_a_model_that_is_not_there_fails_with_a_message(model: Path, tmp_path: Path) -> None:
    server = Server(tmp_path, msgspec.structs.replace(config(model), model_uri="file:///nowhere"))
    try:
        assert server.started()[-1] == Failed("file:///nowhere: there is nothing at /nowhere")
        server.process.join(10)
        assert server.process.exitcode == 1
    finally:
        server.close()


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that only waits for somebody to read its exit status does not."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def test_dies_with_its_parent(tmp_path: Path) -> None:
    """Killed without a word, even while the engine loads."""
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent(
            """
            import multiprocessing, time
            from kvtide_worker.engine.config import EngineConfig
            from kvtide_worker.engine.process import run_engine

            if __name__ == "__main__":
                spawn = multiprocessing.get_context("spawn")
                pipes = "ipc:///dev/shm/kvtide-nobody-1", "ipc:///dev/shm/kvtide-nobody-2"
                child = spawn.Process(target=run_engine, args=(EngineConfig("file:///nowhere", {}), *pipes))
                child.start()
                print(child.pid, flush=True)
                time.sleep(60)
            """
        )
    )
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert is_alive(child)
    time.sleep(0.5)
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 10
    while is_alive(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_alive(child)
