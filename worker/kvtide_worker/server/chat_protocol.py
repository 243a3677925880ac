"""The body of a chat request."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from kvtide_worker.server.conversation import MAX_TOOLS, ChatMessage, NamedTool, Tool, ToolChoice
from kvtide_worker.server.protocol import MAX_TOP_LOGPROBS, GenerationRequest, refused


class ChatRequest(GenerationRequest):
    """The body of POST /v1/chat/completions.

    max_completion_tokens: the newer name of `max_tokens`
    chat_template_kwargs:  variables of the model's own template, such as Qwen's `enable_thinking`
    """

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, default_factory=list)]
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool = True
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def top_logprobs_wanted(self) -> int | None:
        """As `GenerationRequest`'s."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def offered(self) -> list[Tool]:
        """The tools that the model may call, of which there are none with `tool_choice: none`."""
        return [] if self.tool_choice == "none" else self.tools

    @property
    def forced(self) -> list[Tool]:
        """The tools of which one must be called; none where the model may also write text."""
        if isinstance(self.tool_choice, NamedTool):
            name = self.tool_choice.function.name
            return [tool for tool in self.tools if tool.function.name == name]
        return self.tools if self.tool_choice == "required" else []

    @model_validator(mode="after")
    def _check_limits(self) -> Self:
        if self.max_completion_tokens is not None:
            if self.max_tokens not in (None, self.max_completion_tokens):
                raise refused(
                    "max_completion_tokens",
                    "'max_tokens' and 'max_completion_tokens' are two names of one limit; send one of them",
                )
            self.max_tokens = self.max_completion_tokens
        if self.top_logprobs and not self.logprobs:
            raise refused("top_logprobs", "'top_logprobs' is only allowed with logprobs: true")
        return self

    @model_validator(mode="after")
    def _check_tools(self) -> Self:
        names = [tool.function.name for tool in self.tools]
        if len(set(names)) < len(names):
            raise refused("tools", "two of 'tools' have the same name")
        if isinstance(self.tool_choice, NamedTool) and not self.forced:
            asked = self.tool_choice.function.name
            raise refused("tool_choice", f"'tool_choice' names {asked}, but 'tools' has {', '.join(names) or 'none'}")
        if self.tool_choice == "required" and not self.tools:
            raise refused("tool_choice", "'tool_choice' required needs 'tools'")
        if self.offered and self.guided is not None:
            raise refused("tools", "'tools' are not supported with structured_outputs; use response_format, or none")
        if self.forced and self.min_tokens:
            raise refused("min_tokens", "'min_tokens' is not supported where a call is required")
        return self
