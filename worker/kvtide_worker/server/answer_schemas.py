"""What answers look like, for the API's own description at /openapi.json and for those who check against it."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

Logprob = Annotated[float, Field(le=0)]


class ErrorText(TypedDict):
    """What is wrong, for a person, and for a program."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(TypedDict):
    """OpenAI's shape of all errors."""

    error: ErrorText


class PromptTokensDetails(TypedDict):
    """Of the prompt's tokens, those that were not computed for this request."""

    cached_tokens: int


class Usage(TypedDict):
    """Token counts over all choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class TopLogprob(TypedDict):
    """One likely token."""

    token: str
    logprob: Logprob
    bytes: list[int]


class ChatLogprob(TopLogprob):
    """A token of an answer, and the likeliest ones at its place."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(TypedDict):
    """All tokens of an answer."""

    content: list[ChatLogprob]
    refusal: None


class FunctionCall(TypedDict):
    """What is to be called. arguments: a JSON object, as text."""

    name: str
    arguments: str


class ToolCallOut(TypedDict):
    """A call that the model wants made."""

    id: str
    type: Literal["function"]
    function: FunctionCall


class AnswerMessage(TypedDict):
    """What the assistant says."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: NotRequired[list[ToolCallOut]]


class ChatChoice(TypedDict):
    """One of `n` answers."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]


class ChatCompletion(TypedDict):
    """The answer to POST /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: NotRequired[list[dict[str, Any] | None]]


class CompletionLogprobs(TypedDict):
    """All tokens of a choice."""

    tokens: list[str]
    token_logprobs: list[Logprob | None]
    top_logprobs: list[dict[str, Logprob] | None]
    text_offset: list[int]


class CompletionChoice(TypedDict):
    """One of `n` texts after one of the prompts."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]
    prompt_logprobs: NotRequired[list[dict[str, Any] | None]]


class Completion(TypedDict):
    """The answer to POST /v1/completions."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage


_STATUSES = {
    400: "The request cannot be served as it is; `param` names the field.",
    401: "A key is asked for, and this is not it.",
    404: "There is no such model.",
    413: "The body is too long.",
    429: "Too much waits already; see Retry-After.",
    500: "The request was lost here.",
    503: "Another worker, or a later moment, can serve it; see Retry-After.",
    504: "A grammar, or the whole request, took too long.",
}
ERRORS: dict[int | str, dict[str, Any]] = {
    **{status: {"model": ErrorBody, "description": text} for status, text in _STATUSES.items()},
    # For what comes from before the endpoints, and in place of FastAPI's own 422, which is never sent.
    "default": {"model": ErrorBody, "description": "Any other error."},
}


def generated(answer: Any) -> dict[int | str, dict[str, Any]]:
    """The 200 of an endpoint that answers whole, or as a stream of events."""
    return {200: {"model": answer, "content": {"text/event-stream": {"schema": {"type": "string"}}}}}
