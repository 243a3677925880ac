"""What a conversation consists of, as OpenAI writes it: messages, tools, and what must be called."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

MAX_TOOLS = 128

FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]

# What clients repeat when they send an answer back as a message; empty, it says nothing.
_ECHOED_FIELDS = {"refusal", "annotations", "audio", "function_call", "reasoning_content"}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Function(_Strict):
    """A function that a model may call. strict: arguments always match the schema; held where a call is required."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(_Strict):
    """A tool; functions are the only kind."""

    type: Literal["function"]
    function: Function


class CalledFunction(_Strict):
    """What was called, with a JSON object as text."""

    name: FunctionName
    arguments: str

    @property
    def parsed(self) -> dict[str, Any]:
        """The arguments as chat templates read them."""
        parsed: dict[str, Any] = json.loads(self.arguments or "{}")
        return parsed

    @field_validator("arguments")
    @classmethod
    def _check_arguments(cls, arguments: str) -> str:
        try:
            is_object = isinstance(json.loads(arguments or "{}"), dict)
        except (json.JSONDecodeError, RecursionError):
            is_object = False
        if not is_object:
            raise PydanticCustomError("arguments", "arguments of a call are a JSON object, written as text")
        return arguments


class MadeCall(_Strict):
    """A call that the assistant made."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction

    @model_validator(mode="before")
    @classmethod
    def _drop_index(cls, data: Any) -> Any:
        """Clients that add up a stream send its index back."""
        return {key: value for key, value in data.items() if key != "index"} if isinstance(data, dict) else data


class TextPart(_Strict):
    """A part of a message's content."""

    type: Literal["text"]
    text: str


class ChatMessage(BaseModel):
    """One message of a conversation. `developer` is OpenAI's newer word for `system`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: Annotated[list[MadeCall], Field(max_length=MAX_TOOLS)] | None = None
    tool_call_id: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_empty_echoes(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {key: value for key, value in data.items() if value or key not in _ECHOED_FIELDS}

    @field_validator("content", mode="before")
    @classmethod
    def _refuse_other_parts(cls, content: Any) -> Any:
        """Text is the only kind of part that the models here read."""
        for part in content if isinstance(content, list) else ():
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            if kind != "text":
                raise PydanticCustomError(
                    "content",
                    "a content part of the type '{kind}' is not supported; text parts are",
                    {"kind": str(kind)},
                )
        return content

    @model_validator(mode="after")
    def _check_role(self) -> Self:
        if self.tool_calls and self.role != "assistant":
            raise PydanticCustomError("role", "'tool_calls' are of the role assistant", {"param": "messages"})
        if self.role == "tool" and self.tool_call_id is None:
            raise PydanticCustomError(
                "role", "a message of the role tool says in 'tool_call_id' which call it answers", {"param": "messages"}
            )
        return self

    def for_template(self) -> dict[str, Any]:
        """As a chat template reads it."""
        parts = self.content if isinstance(self.content, list) else None
        message: dict[str, Any] = {
            "role": "system" if self.role == "developer" else self.role,
            "content": "\n".join(part.text for part in parts) if parts is not None else self.content or "",
        }
        if self.name:
            message["name"] = self.name
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        if self.tool_calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.function.name, "arguments": call.function.parsed},
                }
                for call in self.tool_calls
            ]
        return message


class NamedFunction(_Strict):
    """A function by its name."""

    name: FunctionName


class NamedTool(_Strict):
    """The one tool that must be called."""

    type: Literal["function"]
    function: NamedFunction


ToolChoice = Literal["none", "auto", "required"] | NamedTool
