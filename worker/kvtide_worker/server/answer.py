"""From the engine's tokens to an answer's text: detokenized, cut at stop strings, timed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from starlette.types import Receive

from kvtide_worker.engine.messages import FinishReason
from kvtide_worker.server.engine_client import EngineFailure, Generation
from kvtide_worker.server.errors import engine_failed
from kvtide_worker.server.latency import RequestWatch
from kvtide_worker.server.protocol import GenerationRequest
from kvtide_worker.server.service import Service
from kvtide_worker.text.detokenizer import Detokenizer
from kvtide_worker.text.stop import StopStrings

EndReason = Literal["stop", "length"]


@dataclass(frozen=True)
class Piece:
    """Some text of choice `index`. end: set on the last piece."""

    index: int
    text: str
    end: EndReason | None = None


@dataclass
class Answer:
    """One choice as it grows: the prompt's ids, the request in the engine, and the tokens so far."""

    index: int
    prompt: list[int]
    generation: Generation
    watch: RequestWatch

    @property
    def generated_tokens(self) -> int:
        """How many tokens the engine gave, an end token included."""
        return self.watch.generated_tokens

    async def pieces(self, service: Service, body: GenerationRequest) -> AsyncIterator[Piece]:
        """The text as it comes; pieces without text are left out, the last has the reason of the end.

        Raises ApiError 500 where the engine fails.
        """
        tokenizer = service.model.tokenizer
        detokenizer = Detokenizer(tokenizer.decode, self.prompt, tokenizer.special_ids)
        stop = StopStrings(body.stop)
        stop_ids = frozenset(body.stop_token_ids or ())
        try:
            async for output in self.generation:
                self.watch.tokens(len(output.token_ids))
                token_ids = output.token_ids
                if output.finish_reason is FinishReason.STOP and token_ids and token_ids[-1] in stop_ids:
                    token_ids = token_ids[:-1]
                text = stop.add(detokenizer.add(token_ids))
                end: EndReason | None = None
                if output.finish_reason is not None:
                    text += stop.add(detokenizer.finish())
                    end = "length" if output.finish_reason is FinishReason.LENGTH else "stop"
                if stop.stopped:
                    self.generation.abort()
                    end = "stop"
                elif end is not None:
                    text += stop.finish()
                if end is not None:
                    self.watch.finished(end)
                    yield Piece(self.index, text, end)
                    return
                if text:
                    yield Piece(self.index, text)
        except EngineFailure as error:
            raise engine_failed(str(error)) from error


def begin(service: Service, body: GenerationRequest, prompts: list[list[int]], prompt_param: str) -> list[Answer]:
    """Send the prompts to the engine. Raises ApiError as `Service.submit`."""
    generations = service.submit(body, prompts, prompt_param)
    return [
        Answer(index, prompt, generation, service.latency.watch(len(prompt)))
        for index, (prompt, generation) in enumerate(zip(prompts, generations, strict=True))
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
