"""The bodies of requests, as OpenAI writes them; what is not honoured is refused in `unsupported`."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from kvtide_worker.server.unsupported import drop_neutral

MAX_STOP_STRINGS = 16
MAX_PROMPTS = 64
_INT64 = 1 << 63

TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]
StopString = Annotated[str, Field(min_length=1, max_length=1024)]


class StreamOptions(BaseModel):
    """`stream_options`: whether the last chunk tells the token counts."""

    model_config = ConfigDict(extra="forbid", strict=True)

    include_usage: bool = False


class _Body(BaseModel):
    """A JSON body whose unknown fields are refused by name."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, data: Any) -> Any:
        return drop_neutral(data, {field.alias or name for name, field in cls.model_fields.items()})


class GenerationRequest(_Body):
    """What chat and plain completions have in common. None is: the default.

    max_tokens:  default: what the context has room for
    top_k:       0 and -1 keep every token
    """

    model: str | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    seed: Annotated[int, Field(ge=-_INT64, lt=_INT64)] | None = None
    stop: Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS)] = []
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STOP_STRINGS)] | None = None
    ignore_eos: bool = False
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str | None = None

    @field_validator("stop", mode="before")
    @classmethod
    def _one_stop_string(cls, stop: Any) -> Any:
        if stop is None:
            return []
        return [stop] if isinstance(stop, str) else stop

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk of token counts."""
        return self.stream_options is not None and self.stream_options.include_usage

    @model_validator(mode="after")
    def _check_stream_options(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise PydanticCustomError(
                "stream", "'stream_options' is only allowed with stream: true", {"param": "stream_options"}
            )
        return self


# What clients repeat when they send an answer back as a message; empty, it says nothing.
_ECHOED_FIELDS = {"refusal", "annotations", "audio", "function_call", "tool_calls", "reasoning_content"}


class ChatMessage(BaseModel):
    """One message of a conversation. `developer` is OpenAI's newer word for `system`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    role: Literal["system", "developer", "user", "assistant"]
    content: str = ""
    name: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_empty_echoes(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {key: value for key, value in data.items() if value or key not in _ECHOED_FIELDS}

    @field_validator("content", mode="before")
    @classmethod
    def _join_parts(cls, content: Any) -> Any:
        """Content is text, or parts of which text is the only kind that the models here read."""
        if content is None:
            return ""
        if not isinstance(content, list):
            return content
        return "\n".join(_part_text(part) for part in content)

    def for_template(self) -> dict[str, str]:
        """As a chat template reads it."""
        role = "system" if self.role == "developer" else self.role
        message = {"role": role, "content": self.content}
        return {**message, "name": self.name} if self.name else message


def _part_text(part: Any) -> str:
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    raise PydanticCustomError(
        "content", "a content part of the type '{kind}' is not supported; text parts are", {"kind": str(kind)}
    )


class ChatRequest(GenerationRequest):
    """The body of POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        """`max_completion_tokens` is the newer name of `max_tokens`."""
        if self.max_completion_tokens is not None:
            if self.max_tokens not in (None, self.max_completion_tokens):
                raise PydanticCustomError(
                    "limit",
                    "'max_tokens' and 'max_completion_tokens' are two names of one limit; send one of them",
                    {"param": "max_completion_tokens"},
                )
            self.max_tokens = self.max_completion_tokens
        return self


class CompletionRequest(GenerationRequest):
    """The body of POST /v1/completions. prompts: text or token ids, one entry for each choice of the answer."""

    prompts: Annotated[list[str | list[int]], Field(alias="prompt", min_length=1, max_length=MAX_PROMPTS)]

    @field_validator("prompts", mode="before")
    @classmethod
    def _one_prompt(cls, prompt: Any) -> Any:
        """A text, token ids, or a list of either."""
        prompts = [prompt] if isinstance(prompt, str) or _are_token_ids(prompt) else prompt
        if not isinstance(prompts, list) or not all(isinstance(p, str) or _are_token_ids(p) for p in prompts):
            raise PydanticCustomError("prompt", "write a text, a list of token ids, or a list of either")
        return prompts


def _are_token_ids(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(token, int) and not isinstance(token, bool) and 0 <= token < 1 << 31 for token in value)
    )


class TokenizeRequest(_Body):
    """The body of POST /tokenize: a text, or messages that are put through the chat template first."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1)] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _one_input(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise PydanticCustomError("input", "send either 'prompt' or 'messages'", {"param": "prompt"})
        return self


class DetokenizeRequest(_Body):
    """The body of POST /detokenize."""

    model: str | None = None
    tokens: list[TokenId]


class LimitsRequest(BaseModel):
    """The body of PUT /v1/limits on the admin port."""

    model_config = ConfigDict(extra="forbid", strict=True)

    batchLimit: Annotated[int, Field(ge=1)]
