"""The worker's life: listen, load, serve, drain, end with the right exit status."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import time
from pathlib import Path

from kvtide_sizing.errors import DoesNotFit, SizingError
from kvtide_sizing.models.model_uri import ModelUri, Scheme
from kvtide_sizing.plan import Plan
from kvtide_worker.engine.calibration import calibration_tokens
from kvtide_worker.engine.config import EngineConfig
from kvtide_worker.engine.heap import give_back_heap
from kvtide_worker.models.source import fetch
from kvtide_worker.server import planning
from kvtide_worker.server.app import admin_app, api_app
from kvtide_worker.server.auth import BearerToken, client_key, read_token
from kvtide_worker.server.engine_client import EngineClient
from kvtide_worker.server.failures import CannotStart
from kvtide_worker.server.http import HttpServer, bind
from kvtide_worker.server.lifecycle import Lifecycle
from kvtide_worker.server.service import ServedModel, Service
from kvtide_worker.server.settings import ServeSettings
from kvtide_worker.server.threads import in_thread
from kvtide_worker.server.voice import Voice, last_words
from kvtide_worker.text.chat_template import ChatTemplate, ChatTemplateError
from kvtide_worker.text.tokenizer import Tokenizer, UnsupportedTokenizerError

_LOOPBACK = "127.0.0.1"
_TICK_S = 0.05
# Enough for the last error to be sent to clients that read.
_AFTER_DEADLINE_S = 1.0

EXIT_OK = 0
EXIT_ENGINE_DIED = 1
EXIT_DOES_NOT_FIT = 2
EXIT_CANNOT_START = 3


def serve(settings: ServeSettings) -> int:
    """Serve until SIGTERM, SIGINT or the engine's end; returns the exit status."""
    try:
        return asyncio.run(_Worker(settings).run())
    except DoesNotFit as error:
        last_words(str(error))
        return EXIT_DOES_NOT_FIT
    except (SizingError, CannotStart, ChatTemplateError, UnsupportedTokenizerError, OSError) as error:
        last_words(str(error))
        return EXIT_CANNOT_START


def engine_config(settings: ServeSettings, path: Path, plan: Plan) -> EngineConfig:
    """What the engine process is told; path is where the model was fetched to: the engine need not look again."""
    return EngineConfig(
        model_uri=str(ModelUri.parse(f"file://{path.absolute()}")),
        plan=plan.to_json(),
        device=settings.device,
        dtype=settings.dtype,
        threads=settings.threads,
        gpu_memory_wait_s=settings.gpu_memory_wait_seconds,
        reencodable=settings.reencodable,
        enforce_eager=settings.enforce_eager,
    )


class _Worker:
    """One run of the server. Signals are handled from the first moment on: a pod may be deleted while it loads."""

    def __init__(self, settings: ServeSettings) -> None:
        self._settings = settings
        self._voice = Voice()
        self._engine: EngineClient | None = None
        self._stop = asyncio.Event()
        self._api_url = ""
        self._service = Service(
            lifecycle=Lifecycle(settings.lame_duck_seconds, settings.drain_seconds),
            engine_timeout_s=settings.engine_timeout_seconds,
            started_at=time.time(),
        )

    async def run(self) -> int:
        """Listen, load, serve, drain."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._signalled, True)
        loop.add_signal_handler(signal.SIGINT, self._signalled, False)
        planning.check_plan_options(self._settings)
        servers = self._listen()
        try:
            loading = loop.create_task(self._load())
            if not await self._unless_stopped(loading):
                return EXIT_OK
            engine = loading.result()
            deadline = loop.create_task(self._enforce_deadline(engine))
            if await self._unless_stopped(loop.create_task(engine.ended.wait())):
                last_words(f"{engine.failure}; every open request was told, and only a restart helps")
                return EXIT_ENGINE_DIED
            self._voice.say(f"draining: {self._service.open_requests} open requests")
            await self._drained(engine)
            deadline.cancel()
            return EXIT_ENGINE_DIED if engine.ended.is_set() else EXIT_OK
        finally:
            for server in servers:
                await server.stop()
            if self._engine is not None:
                await self._engine.stop()

    def _signalled(self, announced: bool) -> None:
        """The second signal is a person who does not want to wait."""
        if self._stop.is_set() and self._service.lifecycle.deadline is not None:
            self._service.lifecycle.deadline = time.monotonic()
        self._service.begin_drain(announced=announced)
        self._stop.set()

    async def _unless_stopped(self, task: asyncio.Task[object]) -> bool:
        """Wait for a task, which then may raise; False where a signal came first, and the task was cancelled."""
        stopped = asyncio.create_task(self._stop.wait())
        await asyncio.wait([task, stopped], return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if task.done():
            task.result()
            return True
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return False

    def _listen(self) -> list[HttpServer]:
        """Both ports answer from here on: alive, not ready."""
        settings = self._settings
        if settings.admin_token_file is None:
            token, admin_host = secrets.token_urlsafe(24), _LOOPBACK
        else:
            token, admin_host = read_token(settings.admin_token_file), settings.host
        key = client_key(settings.api_key_file)
        api_key = None if key is None else BearerToken(key)
        api, admin = bind(settings.host, settings.port), bind(admin_host, settings.admin_port)
        self._api_url = f"http://{_host_port(api.getsockname())}"
        self._voice.say(f"listening on {self._api_url}, not ready yet")
        made = f", token {token} (made for this run)" if settings.admin_token_file is None else ""
        self._voice.say(f"admin port on http://{_host_port(admin.getsockname())}{made}")
        servers = [
            HttpServer(api_app(self._service, api_key), api),
            HttpServer(admin_app(self._service, BearerToken(token), settings.device), admin),
        ]
        for server in servers:
            server.start()
        return servers

    async def _load(self) -> EngineClient:
        """Find the model, plan, start the engine, and read the tokenizer meanwhile."""
        settings = self._settings
        uri = planning.model_uri(settings.model)
        self._stage(f"downloading {uri}" if uri.scheme is Scheme.HF else f"finding {uri}")
        path = await in_thread(fetch, uri)
        plan = await in_thread(planning.plan_for, settings, path)
        for warning in plan.warnings:
            self._voice.say(f"plan: {warning}")
        config = engine_config(settings, path, plan)
        engine = self._engine = EngineClient(config, self._stage)
        engine.start()
        tokenizer = await in_thread(Tokenizer.load, path)
        await engine.calibrate(calibration_tokens(tokenizer))
        give_back_heap()
        template = tokenizer.chat_template
        if settings.chat_template is not None:
            template = settings.chat_template.read_text(encoding="utf-8")
        model = ServedModel(
            name=settings.served_name or planning.model_name(uri),
            tokenizer=tokenizer,
            chat_template=None if template is None else ChatTemplate(template, tokenizer.special_tokens),
            plan=plan,
            created_at=int(self._service.started_at),
        )
        ready, ended = asyncio.create_task(engine.ready.wait()), asyncio.create_task(engine.ended.wait())
        await asyncio.wait([ready, ended], return_when=asyncio.FIRST_COMPLETED)
        if not engine.ready.is_set():
            raise CannotStart(engine.failure)
        ended.cancel()
        self._service.loaded(model, engine)
        state, report = self._service.state, self._service.report
        if report.fallback is not None:
            self._voice.say(report.fallback)
        blocks = state.num_blocks // state.block_tables
        self._voice.say(
            f"serving {model.name} on {self._api_url}/v1: context {plan.max_context_tokens} tokens, KV pool "
            f"{blocks} blocks of {state.block_size_tokens} = {state.capacity_tokens} tokens in {state.kv.precision}, "
            f"batches of up to {state.max_batch_limit}"
        )
        return engine

    def _stage(self, stage: str) -> None:
        self._service.stage = stage
        self._voice.say(stage)

    async def _enforce_deadline(self, engine: EngineClient) -> None:
        """Whoever began the drain, what is still open at its end is given up."""
        while True:
            deadline = self._service.lifecycle.deadline
            if deadline is not None and time.monotonic() >= deadline:
                engine.abort_all("the worker is being stopped, and the drain time ended before this answer did")
            await asyncio.sleep(_TICK_S)

    async def _drained(self, engine: EngineClient) -> None:
        """Return when nothing new is taken and nothing is open, or a little after the deadline."""
        lifecycle = self._service.lifecycle
        assert lifecycle.deadline is not None
        while not engine.ended.is_set():
            now = time.monotonic()
            empty = not lifecycle.accepts(now) and not self._service.open_requests
            if empty or now > lifecycle.deadline + _AFTER_DEADLINE_S:
                return
            await asyncio.sleep(_TICK_S)


def _host_port(address: tuple[str, int]) -> str:
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
