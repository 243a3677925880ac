"""POST /v1/completions: text after a prompt, one choice for each prompt."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from kvtide_worker.server.answer import Answer, EndReason, Piece, begin, given_up_with_the_client, merge
from kvtide_worker.server.protocol import CompletionRequest
from kvtide_worker.server.service import Service
from kvtide_worker.server.stream import AnswerStream, Chunk, usage


def router(service: Service) -> APIRouter:
    """The endpoint, over a service."""
    routes = APIRouter()

    @routes.post("/v1/completions")
    async def completions(body: CompletionRequest, request: Request) -> Response:
        service.check_model(body.model)
        prompts = [
            await service.encode(prompt, add_special_tokens=True) if isinstance(prompt, str) else prompt
            for prompt in body.prompts
        ]
        answers = begin(service, body, prompts, "prompt")
        completion = _Completion(service.model.name, answers, body.include_usage)
        pieces = merge(service, body, answers)
        if body.stream:
            return AnswerStream(answers, pieces, first=completion.first, chunk=completion.chunk, last=completion.last)
        with given_up_with_the_client(request.receive, answers):
            return JSONResponse(completion.complete([piece async for piece in pieces]))

    return routes


@dataclass(frozen=True)
class _Completion:
    """The choices in OpenAI's words, whole or in chunks."""

    model: str
    answers: list[Answer]
    include_usage: bool
    id: str = field(default_factory=lambda: f"cmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def complete(self, pieces: list[Piece]) -> dict[str, Any]:
        """All choices, in the order of their prompts."""
        texts = [""] * len(self.answers)
        ends: list[EndReason | None] = [None] * len(self.answers)
        for piece in pieces:
            texts[piece.index] += piece.text
            ends[piece.index] = piece.end
        choices = [_choice(index, text, end) for index, (text, end) in enumerate(zip(texts, ends, strict=True))]
        return {**self._head(), "choices": choices, "usage": usage(self.answers)}

    def first(self) -> Iterator[Chunk]:
        """Nothing: only chat has a role to tell."""
        yield from ()

    def chunk(self, piece: Piece) -> Iterator[Chunk]:
        """Text of one choice, with the reason of its end where this is it."""
        unknown_yet = {"usage": None} if self.include_usage else {}
        yield {**self._head(), "choices": [_choice(piece.index, piece.text, piece.end)], **unknown_yet}

    def last(self) -> Iterator[Chunk]:
        """The token counts, where they were asked for."""
        if self.include_usage:
            yield {**self._head(), "choices": [], "usage": usage(self.answers)}

    def _head(self) -> dict[str, Any]:
        return {"id": self.id, "object": "text_completion", "created": self.created, "model": self.model}


def _choice(index: int, text: str, end: EndReason | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": end}
