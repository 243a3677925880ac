"""POST /v1/chat/completions."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from kvtide_worker.server.answer import begin, given_up_with_the_client, merge
from kvtide_worker.server.answer_schemas import ChatCompletion, generated
from kvtide_worker.server.chat_answer import ChatAnswer
from kvtide_worker.server.chat_protocol import ChatRequest
from kvtide_worker.server.errors import ApiError
from kvtide_worker.server.grammars import chat_grammar
from kvtide_worker.server.service import Service
from kvtide_worker.server.stream import AnswerStream
from kvtide_worker.text.tool_calls import PYTHON_TAG
from kvtide_worker.text.tool_format import FORMATS, ToolFormat, tool_format


def router(service: Service) -> APIRouter:
    """The endpoint, over a service."""
    routes = APIRouter()

    @routes.post("/v1/chat/completions", responses=generated(ChatCompletion))
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        service.check_model(body.model)
        form = _tool_format(service, body)
        text = service.render(body.messages, tools=body.offered, variables=body.chat_template_kwargs)
        prompt = await service.encode(text, add_special_tokens=False)
        grammar = await chat_grammar(service, body, form)
        spelling = await service.spelling() if body.scores_tokens else []
        answers = begin(service, body, [prompt], "messages", grammar=grammar, shown=_shown(service, form))
        chat = ChatAnswer(service.model.name, answers, body, form, spelling)
        pieces = merge(service, body, answers)
        if body.stream:
            return AnswerStream(answers, pieces, first=chat.first, chunk=chat.chunk, last=chat.last)
        with given_up_with_the_client(request.receive, answers):
            return JSONResponse(chat.complete([piece async for piece in pieces]))

    return routes


def _tool_format(service: Service, body: ChatRequest) -> ToolFormat | None:
    """How the model calls the tools; None where it is offered none. Raises ApiError 400 where it is not known."""
    if not body.offered:
        return None
    template = service.model.chat_template
    form = None if template is None else tool_format(template.source)
    if form is None:
        known = ", ".join(form.name for form in FORMATS)
        raise ApiError(
            400,
            f"'tools' are not supported by {service.model.name}: its chat template teaches none of the ways to call "
            f"tools that are known here ({known}); serve it with --chat-template if it has learned one",
            param="tools",
            code="tools_not_supported",
        )
    return form


def _shown(service: Service, form: ToolFormat | None) -> dict[int, str]:
    """The special tokens that calls are found by."""
    tokenizer = service.model.tokenizer
    markers = () if form is None else (form.marker, PYTHON_TAG, "<tool_call>", "</tool_call>")
    ids = {marker: tokenizer.special_id(marker) for marker in markers if marker}
    return {token_id: marker for marker, token_id in ids.items() if token_id is not None}
