"""Server-sent events: the answer as it grows, its end, and the error when it has none."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from kvtide_worker.server.answer import Answer, Piece, given_up_with_the_client
from kvtide_worker.server.errors import ApiError, server_failed

Chunk = dict[str, Any]

logger = logging.getLogger(__name__)


class AnswerStream(Response):
    """Answers as a stream of `data:` events, ended by `data: [DONE]`.

    An error after the first byte cannot have a status any more: it becomes an event `{"error": …}`, which OpenAI's
    clients raise, and the stream ends without `[DONE]`.

    first:  chunks before any text        chunk: a piece as chunks        last: chunks after all text
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        answers: list[Answer],
        pieces: AsyncIterator[Piece],
        *,
        first: Callable[[], Iterator[Chunk]],
        chunk: Callable[[Piece], Iterator[Chunk]],
        last: Callable[[], Iterator[Chunk]],
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._answers = answers
        self._pieces = pieces
        self._first, self._chunk, self._last = first, chunk, last

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream; the answers are given up when the client goes away."""
        with given_up_with_the_client(receive, self._answers):
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for event in self._events():
                await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _events(self) -> AsyncIterator[bytes]:
        try:
            for chunk in self._first():
                yield _event(chunk)
            async for piece in self._pieces:
                for chunk in self._chunk(piece):
                    yield _event(chunk)
            for chunk in self._last():
                yield _event(chunk)
        except ApiError as error:
            yield _event(error.body)
            return
        except Exception as error:  # a mistake of ours: the client must not take the rest for an answer
            logger.exception("a stream failed")
            yield _event(server_failed(error).body)
            return
        yield b"data: [DONE]\n\n"


def _event(chunk: Chunk) -> bytes:
    return b"data: " + json.dumps(chunk, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def usage(answers: list[Answer], choices: int) -> dict[str, Any]:
    """Token counts over all answers, as OpenAI gives them: a prompt counts once, however many choices it has."""
    prompts = answers[::choices]
    prompt = sum(len(answer.prompt) for answer in prompts)
    generated = sum(answer.generated_tokens for answer in answers)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": {"cached_tokens": sum(answer.cached_tokens for answer in prompts)},
    }
