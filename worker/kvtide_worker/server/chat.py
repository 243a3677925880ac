"""POST /v1/chat/completions."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from kvtide_worker.server.answer import Answer, EndReason, Piece, begin, given_up_with_the_client, merge
from kvtide_worker.server.protocol import ChatRequest
from kvtide_worker.server.service import Service
from kvtide_worker.server.stream import AnswerStream, Chunk, usage


def router(service: Service) -> APIRouter:
    """The endpoint, over a service."""
    routes = APIRouter()

    @routes.post("/v1/chat/completions")
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        service.check_model(body.model)
        prompt = await service.encode(service.render(body.messages), add_special_tokens=False)
        answers = begin(service, body, [prompt], "messages")
        chat = _Chat(service.model.name, answers, body.include_usage)
        pieces = merge(service, body, answers)
        if body.stream:
            return AnswerStream(answers, pieces, first=chat.first, chunk=chat.chunk, last=chat.last)
        with given_up_with_the_client(request.receive, answers):
            return JSONResponse(chat.complete([piece async for piece in pieces]))

    return routes


@dataclass(frozen=True)
class _Chat:
    """One answer in OpenAI's words, whole or in chunks."""

    model: str
    answers: list[Answer]
    include_usage: bool
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def complete(self, pieces: list[Piece]) -> dict[str, Any]:
        """The whole answer."""
        message = {"role": "assistant", "content": "".join(piece.text for piece in pieces)}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": pieces[-1].end}
        return {**self._head("chat.completion"), "choices": [choice], "usage": usage(self.answers)}

    def first(self) -> Iterator[Chunk]:
        """The role, before any text."""
        yield self._delta({"role": "assistant", "content": ""}, None)

    def chunk(self, piece: Piece) -> Iterator[Chunk]:
        """Text, and then the reason of the end in a chunk of its own."""
        if piece.text:
            yield self._delta({"content": piece.text}, None)
        if piece.end is not None:
            yield self._delta({}, piece.end)

    def last(self) -> Iterator[Chunk]:
        """The token counts, where they were asked for."""
        if self.include_usage:
            yield {**self._head("chat.completion.chunk"), "choices": [], "usage": usage(self.answers)}

    def _delta(self, delta: dict[str, str], end: EndReason | None) -> Chunk:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": end}
        unknown_yet = {"usage": None} if self.include_usage else {}
        return {**self._head("chat.completion.chunk"), "choices": [choice], **unknown_yet}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}
