"""From the engine's tokens to an answer's text: detokenized, cut at stop strings, scored, timed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from starlette.types import Receive

from kvtide_worker.engine.messages import FinishReason, TokenLogprobs, TokenOutput
from kvtide_worker.server.engine_client import EngineFailure, Generation
from kvtide_worker.server.errors import engine_failed
from kvtide_worker.server.latency import RequestWatch
from kvtide_worker.server.logprobs import ScoredToken
from kvtide_worker.server.protocol import GenerationRequest
from kvtide_worker.server.service import Service
from kvtide_worker.text.detokenizer import Detokenizer
from kvtide_worker.text.stop import StopStrings
from kvtide_worker.text.tokenizer import Tokenizer

EndReason = Literal["stop", "length"]


@dataclass(frozen=True)
class Piece:
    """Some text of choice `index`, and the tokens that it is made of where they are scored. end: of the last piece."""

    index: int
    text: str
    end: EndReason | None = None
    tokens: list[ScoredToken] = field(default_factory=list)


@dataclass
class Answer:
    """One choice as it grows: the prompt's ids, the request in the engine, and the tokens so far.

    shown:  special tokens that are text here, by id; the others are left out
    hidden: how many generated tokens are not part of the answer: 1 where only the prompt was asked for
    """

    index: int
    prompt: list[int]
    generation: Generation
    watch: RequestWatch
    shown: Mapping[int, str]
    hidden: int = 0
    cached_tokens: int = 0
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)

    @property
    def generated_tokens(self) -> int:
        """How many tokens the engine gave, an end token included."""
        return max(self.watch.generated_tokens - self.hidden, 0)

    async def pieces(self, service: Service, body: GenerationRequest) -> AsyncIterator[Piece]:
        """The text as it comes; pieces without text are left out, the last has the reason of the end.

        Raises ApiError where the engine fails.
        """
        text = _Text(service.model.tokenizer, self.prompt, body, self.shown)
        try:
            async for output in self.generation:
                self.watch.tokens(len(output.token_ids))
                if output.prompt_logprobs is not None:
                    self.prompt_logprobs = output.prompt_logprobs
                self.cached_tokens += output.cached_tokens
                if self.hidden:
                    self.watch.finished("length")
                    yield Piece(self.index, "", "length")
                    return
                given = text.add(output)
                end: EndReason | None = None
                if output.finish_reason is not None:
                    end = "length" if output.finish_reason is FinishReason.LENGTH else "stop"
                    given += text.finish()
                if text.stopped:
                    self.generation.abort()
                    end = "stop"
                tokens = text.scored(all_of_them=end is not None and not text.stopped)
                if end is not None:
                    self.watch.finished(end)
                    yield Piece(self.index, given, end, tokens)
                    return
                if given:
                    yield Piece(self.index, given, None, tokens)
        except EngineFailure as error:
            raise engine_failed(str(error), error.kind) from error


class _Text:
    """A choice's text, and which of its tokens have been given out with it."""

    def __init__(
        self, tokenizer: Tokenizer, prompt: list[int], body: GenerationRequest, shown: Mapping[int, str]
    ) -> None:
        self._detokenizer = Detokenizer(tokenizer.decode, prompt, tokenizer.special_ids)
        self._stop = StopStrings(body.stop_strings, included=body.include_stop_str_in_output)
        self._shown = shown
        # What ends an answer is left out of it, unless stop strings are to stay; ends of the model are special tokens.
        self._left_out = frozenset(() if body.include_stop_str_in_output else body.stop_token_ids or ())
        self._ends = frozenset(tokenizer.eos_token_ids)
        self._read = self._given = 0
        self._waiting: list[ScoredToken] = []

    @property
    def stopped(self) -> bool:
        """Whether a stop string has come."""
        return self._stop.stopped

    def add(self, output: TokenOutput) -> str:
        """The text that can be given out now."""
        token_ids = output.token_ids
        if output.finish_reason is FinishReason.STOP and token_ids and token_ids[-1] in self._left_out:
            token_ids = token_ids[:-1]
        given = ""
        for place, token_id in enumerate(token_ids):
            scores = output.logprobs[place] if output.logprobs else None
            is_end = output.finish_reason is FinishReason.STOP and token_id in self._ends
            if scores is not None and not is_end:
                self._waiting.append(ScoredToken(token_id, self._read, scores))
            if token_id in self._shown:
                # It interrupts a character, if one is unfinished.
                given += self._take(self._detokenizer.finish() + self._shown[token_id])
            else:
                given += self._take(self._detokenizer.add([token_id]))
        return given

    def finish(self) -> str:
        """What was held back when the tokens ended."""
        held = self._take(self._detokenizer.finish())
        rest = "" if self.stopped else self._stop.finish()
        self._given += len(rest)
        return held + rest

    def scored(self, *, all_of_them: bool) -> list[ScoredToken]:
        """The tokens that begin within the text given out so far, each once."""
        count = len(self._waiting)
        if not all_of_them:
            count = sum(token.offset < self._given for token in self._waiting)
        given, self._waiting = self._waiting[:count], self._waiting[count:]
        return given

    def _take(self, text: str) -> str:
        self._read += len(text)
        safe = self._stop.add(text)
        self._given += len(safe)
        return safe


def begin(
    service: Service,
    body: GenerationRequest,
    prompts: list[list[int]],
    prompt_param: str,
    *,
    grammar: str | None = None,
    shown: Mapping[int, str] | None = None,
) -> list[Answer]:
    """Send the prompts to the engine, n times each. Raises ApiError as `Service.submit`.

    grammar: what all answers must match       shown: special tokens that are text
    """
    generations = service.submit(body, prompts, prompt_param, grammar)
    texts = dict(shown or {})
    if not body.skip_special_tokens:
        texts |= service.model.tokenizer.special_texts
    each = [prompt for prompt in prompts for _ in range(body.n)]
    return [
        Answer(index, prompt, generation, service.latency.watch(len(prompt)), texts, hidden=int(body.max_tokens == 0))
        for index, (prompt, generation) in enumerate(zip(each, generations, strict=True))
    ]


async def merge(service: Service, body: GenerationRequest, answers: list[Answer]) -> AsyncIterator[Piece]:
    """The pieces of all choices in the order of their coming. Raises what the first failing one raises."""
    arrived: asyncio.Queue[Piece | Exception] = asyncio.Queue()

    async def pump(answer: Answer) -> None:
        try:
            async for piece in answer.pieces(service, body):
                arrived.put_nowait(piece)
        except Exception as error:
            arrived.put_nowait(error)

    pumps = [asyncio.create_task(pump(answer)) for answer in answers]
    try:
        unfinished = len(answers)
        while unfinished:
            piece = await arrived.get()
            if isinstance(piece, Exception):
                raise piece
            unfinished -= piece.end is not None
            yield piece
    finally:
        for task in pumps:
            task.cancel()


@contextmanager
def given_up_with_the_client(receive: Receive, answers: list[Answer]) -> Iterator[None]:
    """Abort the answers as soon as the client closes the connection, and in any case at the end.

    receive: of the request, whose body has been read, so that only the disconnect is left to come. Starlette cancels
    a stream's task at a disconnect, but not a plain handler's; the watch here serves both.
    """

    def abort() -> None:
        for answer in answers:
            answer.generation.abort()

    watch = asyncio.create_task(_disconnected(receive))
    watch.add_done_callback(lambda _: abort())
    try:
        yield
    finally:
        watch.cancel()
        abort()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
