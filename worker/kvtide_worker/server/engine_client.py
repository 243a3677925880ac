"""The server's end of the pipe to the engine process: requests in, tokens out, and what happens when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import multiprocessing
import shutil
import signal
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from kvtide_worker.engine import messages
from kvtide_worker.engine.config import EngineConfig
from kvtide_worker.engine.process import run_engine

_STOP_GRACE_S = 5.0
# A step takes less than this even with a full batch on a slow CPU.
_LIMIT_PATIENCE_S = 2.0
_START_TICK_S = 0.02
# Of a person; a step over long prompts on a slow, shared CPU was seen to take 20 s.
_POOL_MAP_PATIENCE_S = 30.0


class EngineFailure(RuntimeError):
    """The engine cannot answer: it died, it refused, or the request was given up. The message is for a person."""

    def __init__(self, message: str, kind: messages.ErrorKind = messages.ErrorKind.ENGINE) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(eq=False)
class Generation:
    """One request inside the engine. Iterating gives its tokens; leaving early needs `abort`.

    prompt_tokens: what the queue is longer by; a choice that shares another one's prompt has none
    """

    request_id: str
    prompt_tokens: int
    _abort: Callable[[str], None]
    _outputs: asyncio.Queue[messages.TokenOutput | EngineFailure] = field(default_factory=asyncio.Queue)
    started: bool = False

    async def __aiter__(self) -> AsyncIterator[messages.TokenOutput]:
        """Tokens step by step, the last with a finish reason. Raises EngineFailure."""
        while True:
            output = await self._outputs.get()
            if isinstance(output, EngineFailure):
                raise output
            yield output
            if output.finish_reason is not None:
                return

    def put(self, output: messages.TokenOutput | EngineFailure) -> None:
        """Hand over what the engine gave."""
        self.started = True
        self._outputs.put_nowait(output)

    def abort(self, why: str = "the request was given up") -> None:
        """Free the request's blocks now, and end the iteration with EngineFailure; nothing once it has ended."""
        self._abort(self.request_id)
        self.put(EngineFailure(why))


class EngineClient:
    """Starts the engine process, routes its events, and knows how it is.

    state:      the last numbers it sent, None until it is ready
    report:     what it found and chose while loading, None until then too
    on_progress: called with each stage of loading
    """

    def __init__(self, config: EngineConfig, on_progress: Callable[[str], None]) -> None:
        self._config = config
        self._on_progress = on_progress
        self._folder = tempfile.mkdtemp(prefix="kvtide-")
        self._zmq = zmq.Context()
        self._commands = self._zmq.socket(zmq.PUSH)
        self._commands.sndhwm = 0  # without end: the engine reads all of it before each step, admission bounds it
        self._events = zmq.asyncio.Context.shadow(self._zmq.underlying).socket(zmq.PULL)
        self._events.rcvhwm = 0
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(messages.Event)
        self._ids = itertools.count(1)
        self._open: dict[str, Generation] = {}
        self._reencodings: deque[asyncio.Future[messages.Reencoded]] = deque()
        self._pool_maps: deque[asyncio.Future[messages.PoolMap]] = deque()
        self._has_vocabulary = False
        self._news = asyncio.Event()
        self._heard_at = time.monotonic()
        self._receiver: asyncio.Task[None] | None = None
        self._process: multiprocessing.process.BaseProcess | None = None
        self._stopping = False
        self.state: messages.EngineState | None = None
        self.report: messages.LoadReport | None = None
        self.ready = asyncio.Event()
        self.ended = asyncio.Event()
        self.failure: str | None = None

    def start(self) -> None:
        """Spawn the engine process; `ready` or `ended` follows."""
        command_endpoint, event_endpoint = f"ipc://{self._folder}/commands", f"ipc://{self._folder}/events"
        self._commands.bind(command_endpoint)
        self._events.bind(event_endpoint)
        self._process = multiprocessing.get_context("spawn").Process(
            target=_engine_process,
            args=(self._config, command_endpoint, event_endpoint),
            name="kvtide-engine",
            daemon=True,
        )
        self._process.start()
        loop = asyncio.get_running_loop()
        loop.add_reader(self._process.sentinel, self._process_ended)
        self._receiver = loop.create_task(self._receive())

    async def calibrate(self, tokens: messages.CalibrationTokens) -> None:
        """Send the tokens that the engine may wait for while it loads, once it listens; before any request."""
        message = self._encoder.encode(tokens)
        while not self.ended.is_set():
            try:
                self._commands.send(message, flags=zmq.NOBLOCK)
                return
            except zmq.Again:  # it has only just been started
                await asyncio.sleep(_START_TICK_S)

    def submit_choices(
        self,
        prompt_token_ids: list[int],
        choices: Sequence[messages.SamplingParams],
        *,
        grammar: str | None = None,
        priority: int = 0,
        cache_salt: str = "",
        timeout_s: float | None = None,
    ) -> list[Generation]:
        """Send one request that fits for each choice; the later ones share what the first one computes.

        Raises EngineFailure where there is no engine any more.
        """
        if self.failure is not None:
            raise EngineFailure(self.failure)
        generations: list[Generation] = []
        requests = []
        for sampling in choices:
            generation = Generation(f"r{next(self._ids)}", 0 if generations else len(prompt_token_ids), self._abort)
            self._open[generation.request_id] = generation
            request = messages.AddRequest(
                generation.request_id,
                prompt_token_ids,
                sampling,
                grammar=grammar,
                same_prompt_as=generations[0].request_id if generations else None,
                priority=priority,
                cache_salt=cache_salt,
                timeout_s=timeout_s,
            )
            requests.append(request)
            generations.append(generation)
        self._send(messages.AddRequests(requests))
        return generations

    def set_vocabulary(self, vocabulary: Callable[[], messages.SetVocabulary]) -> None:
        """Tell the engine once what tokens are; before the first grammar."""
        if not self._has_vocabulary:
            self._has_vocabulary = True
            self._send(vocabulary())

    async def set_batch_limit(self, batch_limit: int) -> None:
        """Set the most sequences in a step; returns when `state` shows it, or when the engine takes too long."""
        self._send(messages.SetLimits(batch_limit))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LIMIT_PATIENCE_S):
                while self.state is None or self.state.batch_limit != batch_limit:
                    await self.news()

    async def news(self) -> None:
        """Returns when the engine has said something, as it does at every step and once a second while idle."""
        await self._news.wait()

    async def reencode(self, precision: str) -> messages.Reencoded:
        """Have KV stored in another precision; whether it is. It takes as long as the pool is large.

        Raises EngineFailure where the engine ends.
        """
        if self.failure is not None:
            raise EngineFailure(self.failure)
        answer: asyncio.Future[messages.Reencoded] = asyncio.get_running_loop().create_future()
        self._reencodings.append(answer)
        self._send(messages.Reencode(precision))
        return await answer

    async def pool_map(self) -> messages.PoolMap:
        """The pool as it stands after the step that runs now. Raises EngineFailure where that takes too long, or where
        the engine has ended."""
        if self.failure is not None:
            raise EngineFailure(self.failure)
        answer: asyncio.Future[messages.PoolMap] = asyncio.get_running_loop().create_future()
        self._pool_maps.append(answer)
        self._send(messages.DescribePool())
        try:
            async with asyncio.timeout(_POOL_MAP_PATIENCE_S):
                return await answer
        except TimeoutError:
            raise EngineFailure(f"the engine gave no map of its pool within {_POOL_MAP_PATIENCE_S:g} s") from None

    def abort_all(self, why: str) -> None:
        """Give every open request up; its client is told why."""
        for generation in list(self._open.values()):
            generation.abort(why)

    @property
    def waiting(self) -> list[Generation]:
        """The requests that have no token yet."""
        return [generation for generation in self._open.values() if not generation.started]

    @property
    def silent_seconds(self) -> float:
        """How long nothing was heard; a live engine speaks at every step and once a second while idle."""
        return time.monotonic() - self._heard_at

    async def stop(self) -> None:
        """End the engine process, by force if it does not go by itself."""
        self._stopping = True
        if self._process is not None:
            if self.ready.is_set() and not self.ended.is_set():
                self._send(messages.Shutdown())
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_STOP_GRACE_S):
                        await self.ended.wait()
            if not self.ended.is_set():
                self._process.kill()
                await self.ended.wait()
        if self._receiver is not None:
            self._receiver.cancel()
        self._events.close(linger=0)
        self._commands.close(linger=0)
        self._zmq.term()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _abort(self, request_id: str) -> None:
        if self._open.pop(request_id, None) is not None and not self.ended.is_set():
            self._send(messages.AbortRequest(request_id))

    def _send(self, command: messages.Command) -> None:
        # Nobody at the other end is a process that has just died: its sentinel tells, and fails what is open.
        with contextlib.suppress(zmq.Again):
            self._commands.send(self._encoder.encode(command), flags=zmq.NOBLOCK)

    async def _receive(self) -> None:
        while True:
            event = self._decoder.decode(await self._events.recv())
            self._heard_at = time.monotonic()
            match event:
                case messages.StepOutputs(outputs=outputs, state=state):
                    self.state = state
                    self._spread_news()
                    for output in outputs:
                        self._route(output)
                case messages.Ready(state=state, report=report):
                    self.state, self.report = state, report
                    self.ready.set()
                case messages.Reencoded(state=state):
                    self.state = state
                    done = self._reencodings.popleft()
                    if not done.done():
                        done.set_result(event)
                case messages.PoolMap():
                    answer = self._pool_maps.popleft()
                    if not answer.done():
                        answer.set_result(event)
                case messages.LoadProgress(stage=stage):
                    self._on_progress(stage)
                case messages.Failed(message=message):
                    self._fail(message)

    def _spread_news(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def _route(self, output: messages.TokenOutput) -> None:
        """To the request's own queue; a request that was given up has none any more."""
        generation = self._open.get(output.request_id)
        if generation is None:
            return
        if output.finish_reason is not None:
            del self._open[output.request_id]
        if output.finish_reason in (messages.FinishReason.ABORT, messages.FinishReason.ERROR):
            generation.put(EngineFailure(output.error or "the engine gave the request up", output.kind))
        else:
            generation.put(output)

    def _process_ended(self) -> None:
        assert self._process is not None
        asyncio.get_running_loop().remove_reader(self._process.sentinel)
        self._process.join()
        # Its last words may still lie in the pipe, and say more than an exit status.
        asyncio.get_running_loop().call_later(0 if self._stopping else 0.1, self._buried, self._process.exitcode)

    def _buried(self, exit_code: int | None) -> None:
        if self.failure is None:
            self._fail(f"the engine process ended ({_exit_text(exit_code)})")
        self.ended.set()

    def _fail(self, message: str) -> None:
        self.failure = message
        for generation in self._open.values():
            generation.put(EngineFailure(message))
        self._open.clear()
        self._spread_news()
        waiting: list[asyncio.Future[Any]] = [*self._pool_maps, *self._reencodings]
        for answer in waiting:
            if not answer.done():
                answer.set_exception(EngineFailure(message))
        self._pool_maps.clear()
        self._reencodings.clear()


def _exit_text(exit_code: int | None) -> str:
    if exit_code is None or exit_code >= 0:
        return f"exit status {exit_code}"
    name = signal.Signals(-exit_code).name
    hint = "; out of memory?" if name == "SIGKILL" else ""
    return f"killed by {name}{hint}"


def _engine_process(config: EngineConfig, command_endpoint: str, event_endpoint: str) -> None:
    """The engine process's main. A SIGTERM to the whole group reaches it too, but the server decides about its end."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    run_engine(config, command_endpoint, event_endpoint)
