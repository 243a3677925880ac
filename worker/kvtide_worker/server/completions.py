"""POST /v1/completions: text after a prompt, `n` choices for each prompt."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from kvtide_worker.server.answer import Answer, EndReason, Piece, begin, given_up_with_the_client, merge
from kvtide_worker.server.answer_schemas import Completion, generated
from kvtide_worker.server.grammars import answer_grammar
from kvtide_worker.server.logprobs import ScoredToken, completion_logprobs, prompt_logprobs
from kvtide_worker.server.protocol import CompletionRequest
from kvtide_worker.server.service import Service
from kvtide_worker.server.stream import AnswerStream, Chunk, usage
from kvtide_worker.text.detokenizer import Detokenizer
from kvtide_worker.text.tokenizer import Tokenizer


def router(service: Service) -> APIRouter:
    """The endpoint, over a service."""
    routes = APIRouter()

    @routes.post("/v1/completions", responses=generated(Completion))
    async def completions(body: CompletionRequest, request: Request) -> Response:
        service.check_model(body.model)
        prompts = [
            await service.encode(prompt, add_special_tokens=True) if isinstance(prompt, str) else prompt
            for prompt in body.prompts
        ]
        grammar = await answer_grammar(service, body)
        spelling = await service.spelling() if body.scores_tokens else []
        answers = begin(service, body, prompts, "prompt", grammar=grammar)
        completion = _Completion(service.model.name, answers, body, service.model.tokenizer, spelling)
        pieces = merge(service, body, answers)
        if body.stream:
            return AnswerStream(answers, pieces, first=completion.first, chunk=completion.chunk, last=completion.last)
        with given_up_with_the_client(request.receive, answers):
            return JSONResponse(completion.complete([piece async for piece in pieces]))

    return routes


class _Completion:
    """The choices in OpenAI's words, whole or in chunks."""

    def __init__(
        self,
        model: str,
        answers: list[Answer],
        body: CompletionRequest,
        tokenizer: Tokenizer,
        spelling: Sequence[bytes],
    ) -> None:
        self._answers = answers
        self._body = body
        self._tokenizer = tokenizer
        self._spelling = spelling
        self._head = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
        }
        self._echoed: dict[int, int] = {}  # how long its prompt's text is, by choice

    def complete(self, pieces: list[Piece]) -> dict[str, Any]:
        """All choices, in the order of their prompts."""
        choices = []
        for answer in self._answers:
            own = [piece for piece in pieces if piece.index == answer.index]
            text = "".join(piece.text for piece in own)
            choice = self._choice(answer, text, own[-1].end, [token for piece in own for token in piece.tokens])
            if self._body.prompt_logprobs is not None:
                choice["prompt_logprobs"] = prompt_logprobs(answer.prompt_logprobs, self._spelling)
            choices.append(choice)
        return {**self._head, "choices": choices, "usage": usage(self._answers, self._body.n)}

    def first(self) -> Iterator[Chunk]:
        """Nothing: only chat has a role to tell."""
        yield from ()

    def chunk(self, piece: Piece) -> Iterator[Chunk]:
        """Text of one choice, with the reason of its end where this is it."""
        unknown_yet = {"usage": None} if self._body.include_usage else {}
        choice = self._choice(self._answers[piece.index], piece.text, piece.end, piece.tokens)
        yield {**self._head, "choices": [choice], **unknown_yet}

    def last(self) -> Iterator[Chunk]:
        """The token counts, where they were asked for."""
        if self._body.include_usage:
            yield {**self._head, "choices": [], "usage": usage(self._answers, self._body.n)}

    def _choice(
        self, answer: Answer, text: str, end: EndReason | None, tokens: Sequence[ScoredToken]
    ) -> dict[str, Any]:
        """The next text of a choice; the prompt goes before the first one where it is to be repeated."""
        told = list(tokens)
        if self._body.echo:
            of_prompt: list[ScoredToken] = []
            if answer.index not in self._echoed:
                prompt, of_prompt = self._echo(answer)
                self._echoed[answer.index] = len(prompt)
                text = prompt + text
            shift = self._echoed[answer.index]
            told = of_prompt + [ScoredToken(token.token_id, shift + token.offset, token.scores) for token in told]
        logprobs = None if self._body.logprobs is None else completion_logprobs(told, self._spelling)
        return {"index": answer.index, "text": text, "logprobs": logprobs, "finish_reason": end}

    def _echo(self, answer: Answer) -> tuple[str, list[ScoredToken]]:
        """A prompt's text and tokens, the scores of which have come with the first token after it."""
        detokenizer = Detokenizer(self._tokenizer.decode, (), self._tokenizer.special_ids)
        scores = [None, *answer.prompt_logprobs] if self._body.logprobs is not None else []
        text, tokens = "", []
        for place, token_id in enumerate(answer.prompt):
            if scores:
                tokens.append(ScoredToken(token_id, len(text), scores[place]))
            text += detokenizer.add([token_id])
        return text + detokenizer.finish(), tokens
