"""The grammar that an answer must match, if any: of its format, of the tools that must be called, or of both."""

from __future__ import annotations

import json
from typing import Any

from llguidance import LLMatcher

from kvtide_worker.server.chat_protocol import ChatRequest
from kvtide_worker.server.conversation import NamedTool, Tool
from kvtide_worker.server.errors import ApiError
from kvtide_worker.server.protocol import GenerationRequest
from kvtide_worker.server.response_format import ANSWER_JSON, ARGUMENTS_JSON, json_grammar, structured_grammar
from kvtide_worker.server.service import Service
from kvtide_worker.text.tool_format import ToolFormat


async def answer_grammar(service: Service, body: GenerationRequest) -> str | None:
    """Of the answer's format, checked; None for free text. Raises ApiError 400 where it is no grammar."""
    guided, schema = body.guided, body.schema_to_match
    if guided is None and schema is None:
        return None
    param = "response_format"
    if guided is not None:
        param = "structured_outputs" if body.structured_outputs is not None else "guided_json"
    try:
        grammar = structured_grammar(guided) if guided is not None else json_grammar(schema or {})
    except ValueError as error:
        raise ApiError(400, f"{param}: {error}", param=param, code="invalid_grammar") from error
    return await service.checked(grammar, param)


async def chat_grammar(service: Service, body: ChatRequest, form: ToolFormat | None) -> str | None:
    """As `answer_grammar`; where a tool must be called, of the calls, and where tools may be called and the answer has
    a schema, of either. form: how the model calls tools, where it has some.
    """
    schema = body.schema_to_match
    if form is None or (not body.forced and schema is None):
        return await answer_grammar(service, body)
    tools = body.forced or body.offered
    marker_id = service.model.tokenizer.special_id(form.marker) if form.marker else None
    calls = form.rules(
        [(tool.function.name, _parameters(tool)) for tool in tools],
        parallel=body.parallel_tool_calls and not isinstance(body.tool_choice, NamedTool),
        marker_id=marker_id,
    )
    if body.forced:
        start = "start: calls"
    else:
        start = f"start: calls | answer\nanswer: %json {json.dumps({'x-guidance': ANSWER_JSON, **(schema or {})})}"
    return await service.checked(LLMatcher.grammar_from_lark(f"{start}\n{calls}"), "tools")


def _parameters(tool: Tool) -> dict[str, Any]:
    """The schema of a call's arguments; a function without one takes none."""
    schema = tool.function.parameters
    if schema is None:
        schema = {"properties": {}, "additionalProperties": False}
    return {"x-guidance": ARGUMENTS_JSON, "type": "object", **schema}
