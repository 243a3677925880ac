"""A chat's choices in OpenAI's words, whole or in chunks: text, calls of tools, log probabilities."""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kvtide_worker.server.answer import Answer, Piece
from kvtide_worker.server.chat_protocol import ChatRequest
from kvtide_worker.server.conversation import NamedTool
from kvtide_worker.server.logprobs import chat_logprobs, prompt_logprobs
from kvtide_worker.server.stream import Chunk, usage
from kvtide_worker.text.tool_calls import ToolCall, ToolCallParser
from kvtide_worker.text.tool_format import ToolFormat


class ChatAnswer:
    """All choices of a chat.

    form:      how the model calls the tools that it was offered; None where it was offered none
    spelling:  the bytes of each token id, where log probabilities are told
    """

    def __init__(
        self,
        model: str,
        answers: list[Answer],
        body: ChatRequest,
        form: ToolFormat | None,
        spelling: Sequence[bytes],
    ) -> None:
        self._answers = answers
        self._body = body
        self._spelling = spelling
        self._head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}
        names = [tool.function.name for tool in body.offered]
        self._choices = [
            _Choice(ToolCallParser(form, names) if form else None, body.parallel_tool_calls) for _ in answers
        ]

    def complete(self, pieces: list[Piece]) -> dict[str, Any]:
        """The whole answer."""
        choices = []
        for answer, choice in zip(self._answers, self._choices, strict=True):
            own = [piece for piece in pieces if piece.index == answer.index]
            found = [part for piece in own for part in choice.read(piece)]
            text = "".join(part for part in found if isinstance(part, str))
            calls = [self._call(part) for part in found if isinstance(part, ToolCall)]
            message: dict[str, Any] = {
                "role": "assistant",
                "content": text if text or not calls else None,
                "refusal": None,
            }
            if calls:
                message["tool_calls"] = calls
            choices.append(
                {
                    "index": answer.index,
                    "message": message,
                    "logprobs": self._logprobs([token for piece in own for token in piece.tokens]),
                    "finish_reason": self._end(own[-1], choice),
                }
            )
        told = {
            **self._head,
            "object": "chat.completion",
            "choices": choices,
            "usage": usage(self._answers, self._body.n),
        }
        if self._body.prompt_logprobs is not None:
            told["prompt_logprobs"] = prompt_logprobs(self._answers[0].prompt_logprobs, self._spelling)
        return told

    def first(self) -> Iterator[Chunk]:
        """The role of each choice, before any text."""
        for answer in self._answers:
            yield self._chunk(answer.index, {"role": "assistant", "content": ""})

    def chunk(self, piece: Piece) -> Iterator[Chunk]:
        """Text and calls, and then the reason of the end in a chunk of its own."""
        choice = self._choices[piece.index]
        logprobs = self._logprobs(piece.tokens) if piece.tokens else None
        for part in choice.read(piece):
            if isinstance(part, ToolCall):
                call = {"index": choice.calls_given, **self._call(part)}
                choice.calls_given += 1
                delta: dict[str, Any] = {"tool_calls": [call]}
            else:
                delta = {"content": part}
            yield self._chunk(piece.index, delta, logprobs=logprobs)
            logprobs = None
        if logprobs is not None:
            yield self._chunk(piece.index, {"content": ""}, logprobs=logprobs)
        if piece.end is not None:
            yield self._chunk(piece.index, {}, end=self._end(piece, choice))

    def last(self) -> Iterator[Chunk]:
        """The token counts, where they were asked for."""
        if self._body.include_usage:
            yield {
                **self._head,
                "object": "chat.completion.chunk",
                "choices": [],
                "usage": usage(self._answers, self._body.n),
            }

    def _chunk(
        self, index: int, delta: dict[str, Any], *, logprobs: dict[str, Any] | None = None, end: str | None = None
    ) -> Chunk:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": end}
        unknown_yet = {"usage": None} if self._body.include_usage else {}
        return {**self._head, "object": "chat.completion.chunk", "choices": [choice], **unknown_yet}

    def _end(self, piece: Piece, choice: _Choice) -> str | None:
        """OpenAI's reasons: calls are one, unless it was said which function to call."""
        if piece.end == "stop" and choice.called and not isinstance(self._body.tool_choice, NamedTool):
            return "tool_calls"
        return piece.end

    def _logprobs(self, tokens: list[Any]) -> dict[str, Any] | None:
        return chat_logprobs(tokens, self._spelling) if self._body.logprobs else None

    def _call(self, call: ToolCall) -> dict[str, Any]:
        """With an id of nine letters and digits: Mistral's templates take no other back."""
        function = {"name": call.name, "arguments": call.arguments}
        return {"id": secrets.token_hex(5)[:9], "type": "function", "function": function}


@dataclass
class _Choice:
    """How far one choice is. parallel: whether more than its first call counts."""

    parser: ToolCallParser | None
    parallel: bool
    called: bool = False
    calls_given: int = 0

    def read(self, piece: Piece) -> list[str | ToolCall]:
        """The text and the calls that this piece completes."""
        if self.parser is None:
            return [piece.text] if piece.text else []
        found = self.parser.add(piece.text)
        if piece.end is not None:
            found += self.parser.finish()
        told = []
        for part in found:
            if isinstance(part, str) or self.parallel or not self.called:
                told.append(part)
            self.called = self.called or isinstance(part, ToolCall)
        return told
