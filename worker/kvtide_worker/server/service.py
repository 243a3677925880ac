"""What the endpoints share: the model that is served, the engine, the phase of life, and the way in for a request."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry

from kvtide_sizing.plan import Plan
from kvtide_worker.engine.admission import NeverFits, output_tokens
from kvtide_worker.engine.messages import EngineState, LoadReport, SetVocabulary
from kvtide_worker.server.admission import AdmissionLimits, Capacity, Queue, overload
from kvtide_worker.server.conversation import ChatMessage, Tool
from kvtide_worker.server.engine_client import EngineClient, EngineFailure, Generation
from kvtide_worker.server.errors import ApiError, engine_failed, model_not_found, unavailable
from kvtide_worker.server.grammar_check import check_grammar
from kvtide_worker.server.latency import Latency
from kvtide_worker.server.lifecycle import Lifecycle
from kvtide_worker.server.metrics import EngineCollector
from kvtide_worker.server.protocol import GenerationRequest
from kvtide_worker.server.sampling_params import choices
from kvtide_worker.text.chat_template import ChatTemplate, ChatTemplateError
from kvtide_worker.text.tokenizer import Tokenizer

# Tokenizing goes to a thread from this length on: below it the hop costs more than the work.
_LONG_TEXT = 4096


@dataclass(frozen=True)
class ServedModel:
    """The one model of this server. chat_template: None where it has none, and chat is refused."""

    name: str
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    plan: Plan
    created_at: int


@dataclass
class Service:
    """The server's state; `model`, `engine` and `latency` are there once the worker is loaded."""

    lifecycle: Lifecycle
    engine_timeout_s: float
    started_at: float
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    open_requests: int = 0
    limits: AdmissionLimits = field(default_factory=AdmissionLimits)
    stage: str = "starting"
    _model: ServedModel | None = None
    _engine: EngineClient | None = None
    _latency: Latency | None = None

    def loaded(self, model: ServedModel, engine: EngineClient) -> None:
        """Begin to serve."""
        self._model, self._engine = model, engine
        self._latency = Latency(self.registry, model.name)
        assert engine.report is not None, "an engine that is ready has told what it loaded"
        self.registry.register(EngineCollector(model.name, model.plan, engine.report, lambda: engine.state))
        self.lifecycle.loaded = True

    @property
    def model(self) -> ServedModel:
        """The model. Raises ApiError 503 while it loads."""
        if self._model is None:
            raise unavailable(f"the model is not loaded yet ({self.stage})", retry_after_s=5)
        return self._model

    @property
    def engine(self) -> EngineClient:
        """The engine. Raises ApiError 503 while it loads."""
        if self._engine is None:
            raise unavailable(f"the model is not loaded yet ({self.stage})", retry_after_s=5)
        return self._engine

    @property
    def latency(self) -> Latency:
        """The histograms; there with the model."""
        assert self._latency is not None
        return self._latency

    @property
    def state(self) -> EngineState:
        """The engine's last numbers. Raises ApiError 503 while it loads."""
        state = self.engine.state
        assert state is not None, "an engine that is ready has told its state"
        return state

    async def until_busy(self, within_s: float) -> None:
        """Returns once a request runs or waits, or the worker drains or fails; at the latest after so long.

        Raises ApiError 503 while it loads.
        """
        engine = self.engine
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while not (self.state.running or self.state.waiting or self.lifecycle.draining or engine.failure):
                    await engine.news()

    @property
    def report(self) -> LoadReport:
        """What the engine found and chose while loading. Raises ApiError 503 while it loads."""
        report = self.engine.report
        assert report is not None, "an engine that is ready has told what it loaded"
        return report

    @property
    def trouble(self) -> str | None:
        """Why this worker should be restarted; None while it is well, and while it loads."""
        if self._engine is None:
            return None
        if self._engine.failure is not None:
            return self._engine.failure
        silent = self._engine.silent_seconds
        return f"the engine has been silent for {silent:.0f} s" if silent > self.engine_timeout_s else None

    @property
    def ready(self) -> bool:
        """Whether traffic should come here."""
        return self.lifecycle.loaded and not self.lifecycle.draining and self.trouble is None

    @property
    def capacity(self) -> Capacity:
        """What all sequences share; from the pool that the engine really allocated."""
        return Capacity(pool_tokens=self.state.capacity_tokens, max_batch=self.state.max_batch_limit)

    def check_model(self, asked: str | None) -> ServedModel:
        """The model, if it is the one that was asked for. Raises ApiError 404, or 503 while it loads."""
        model = self.model
        if asked not in (None, model.name):
            raise model_not_found(asked, model.name)
        return model

    def render(
        self,
        messages: list[ChatMessage],
        *,
        tools: Sequence[Tool] = (),
        variables: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt text of a conversation. Raises ApiError 400 where the model does not chat, or not like this."""
        template = self.model.chat_template
        if template is None:
            raise ApiError(400, f"{self.model.name} has no chat template; use /v1/completions", code="no_chat_template")
        try:
            return template.render(
                [message.for_template() for message in messages],
                tools=[tool.model_dump(exclude_none=True) for tool in tools],
                variables=variables or {},
                add_generation_prompt=add_generation_prompt,
            )
        except ChatTemplateError as error:
            raise ApiError(400, str(error), param="messages", code="invalid_value") from error

    async def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of a text; a long one does not hold up the other requests.

        Raises ApiError 400 for a text that is too long for any sequence, and for halves of surrogate pairs: JSON can
        write them, but they are no text.
        """
        tokenizer = self.model.tokenizer
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ApiError(400, f"the text is not Unicode: {error}", code="invalid_value") from error
        most = self.model.plan.max_context_tokens * tokenizer.longest_token
        if len(text) > most:
            # Tokenizing takes many times the text's memory: what cannot fit is told before.
            raise ApiError(
                400,
                f"the text has {len(text)} characters, more than the {self.model.plan.max_context_tokens} tokens of a "
                f"sequence here can be ({most}); shorten it",
                code="context_length_exceeded",
            )
        if len(text) < _LONG_TEXT:
            return tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return await asyncio.to_thread(tokenizer.encode, text, add_special_tokens=add_special_tokens)

    async def spelling(self) -> list[bytes]:
        """The bytes of each token id; the first call takes a moment, beside the other requests."""
        return await asyncio.to_thread(lambda: self.model.tokenizer.spelling)

    async def checked(self, grammar: str, param: str) -> str:
        """The grammar, once it is known to be one, and the engine knows what it is about. Raises ApiError 400."""
        await check_grammar(grammar, param)
        tokenizer, spelling = self.model.tokenizer, await self.spelling()
        self.engine.set_vocabulary(
            lambda: SetVocabulary(spelling, sorted(tokenizer.special_ids), list(tokenizer.eos_token_ids))
        )
        return grammar

    def submit(
        self, body: GenerationRequest, prompts: list[list[int]], prompt_param: str, grammar: str | None = None
    ) -> list[Generation]:
        """Send prompts to the engine, n times each, all or none; the choices of a prompt stand together.

        Raises ApiError 400 for what never fits, 429 for too much, 503 while admission is paused.
        """
        capacity, engine = self.capacity, self.engine
        if self.limits.paused:
            raise unavailable("this worker was told to take no new requests; another one may", retry_after_s=5)
        self._check_tokens(body)
        lengths = [self._output_tokens(body, prompt, prompt_param) for prompt in prompts]
        waiting = engine.waiting
        queue = Queue(
            requests=len(waiting),
            prompt_tokens=sum(generation.prompt_tokens for generation in waiting),
            mean_request_s=self.latency.mean_request_s,
        )
        too_much = overload(len(prompts) * body.n, sum(map(len, prompts)), queue, capacity, self.limits)
        if too_much is not None:
            raise ApiError(
                429,
                too_much.message,
                kind="rate_limit_error",
                code="overloaded",
                headers={"Retry-After": str(too_much.retry_after_s)},
            )
        eos_token_ids = self.model.tokenizer.eos_token_ids
        try:
            return [
                generation
                for prompt, length in zip(prompts, lengths, strict=True)
                for generation in engine.submit_choices(
                    prompt,
                    choices(body, length, eos_token_ids),
                    grammar=grammar,
                    priority=body.priority,
                    cache_salt=body.cache_salt or "",
                    timeout_s=body.timeout,
                )
            ]
        except EngineFailure as error:
            raise engine_failed(str(error), error.kind) from error

    def _check_tokens(self, body: GenerationRequest) -> None:
        """Raises ApiError 400 for token ids that there are not."""
        for param, token_ids in (("logit_bias", body.token_biases), ("stop_token_ids", body.stop_token_ids or ())):
            self._check_known(token_ids, param)

    def _check_known(self, token_ids: Iterable[int], param: str) -> None:
        size = self.model.tokenizer.size
        unknown = next((token for token in token_ids if token >= size), None)
        if unknown is not None:
            raise ApiError(
                400,
                f"{param}: token id {unknown} is not in the vocabulary: ids go from 0 to {size - 1}",
                param=param,
                code="invalid_value",
            )

    def _output_tokens(self, body: GenerationRequest, prompt: list[int], prompt_param: str) -> int:
        if not prompt:
            raise ApiError(400, "the prompt has no tokens", param=prompt_param, code="invalid_value")
        self._check_known(prompt, prompt_param)
        try:
            # A prompt alone is computed by asking for the token after it.
            asked = 1 if body.max_tokens == 0 else body.max_tokens
            length = output_tokens(len(prompt), asked, self.model.plan.max_context_tokens)
        except NeverFits as error:
            param = prompt_param if error.prompt_alone else "max_tokens"
            raise ApiError(400, str(error), param=param, code="context_length_exceeded") from error
        if body.min_tokens > length:
            raise ApiError(
                400,
                f"min_tokens {body.min_tokens} is more than the {length} tokens that the answer may have",
                param="min_tokens",
                code="invalid_value",
            )
        return length

    def begin_drain(self, *, announced: bool) -> None:
        """Stop being ready, as SIGTERM does."""
        self.lifecycle.begin_drain(time.monotonic(), announced=announced)
