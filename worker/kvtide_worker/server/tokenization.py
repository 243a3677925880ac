"""POST /tokenize and /detokenize: what a text costs, before it is sent."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from kvtide_worker.server.errors import ApiError
from kvtide_worker.server.protocol import DetokenizeRequest, TokenizeRequest
from kvtide_worker.server.service import Service


def router(service: Service) -> APIRouter:
    """The endpoints, over a service; bodies and answers as vLLM has them."""
    routes = APIRouter()

    @routes.post("/tokenize")
    async def tokenize(body: TokenizeRequest) -> dict[str, Any]:
        model = service.check_model(body.model)
        if body.messages is not None:
            text = service.render(
                body.messages, tools=body.tools or (), add_generation_prompt=body.add_generation_prompt
            )
            tokens = await service.encode(text, add_special_tokens=False)
        else:
            tokens = await service.encode(body.prompt or "", add_special_tokens=body.add_special_tokens)
        return {
            "count": len(tokens),
            "max_model_len": model.plan.max_context_tokens,
            "tokens": tokens,
            "token_strs": model.tokenizer.tokens(tokens) if body.return_token_strs else None,
        }

    @routes.post("/detokenize")
    async def detokenize(body: DetokenizeRequest) -> dict[str, str]:
        tokenizer = service.check_model(body.model).tokenizer
        unknown = next((token for token in body.tokens if token >= tokenizer.size), None)
        if unknown is not None:
            raise ApiError(400, f"token id {unknown} is not in the vocabulary of {tokenizer.size}", param="tokens")
        return {"prompt": tokenizer.decode(body.tokens)}

    return routes
