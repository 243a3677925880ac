"""Errors as OpenAI's clients know them: `{"error": {"message", "type", "param", "code"}}` and a status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from kvtide_worker.engine.messages import ErrorKind


class ApiError(Exception):
    """An answer that is not the one asked for. `message` is for a person and says what would work."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        # Fields that a client sent may stand in it, and need not be Unicode.
        message, param = _unicode(message), None if param is None else _unicode(param)
        super().__init__(message)
        self.status = status
        self.headers = dict(headers or {})
        self.body: dict[str, Any] = {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _unicode(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def unavailable(message: str, *, retry_after_s: int = 1) -> ApiError:
    """503: this worker cannot take the request, another one or a later moment can."""
    return ApiError(
        503,
        message,
        kind="service_unavailable",
        code="unavailable",
        headers={"Retry-After": str(retry_after_s)},
    )


def engine_failed(message: str, kind: ErrorKind = ErrorKind.ENGINE) -> ApiError:
    """The request ended in the engine without an answer: 400 where its grammar is why, 504 for time, else 500."""
    if kind is ErrorKind.GRAMMAR:
        return ApiError(400, message, code=kind.value, param="response_format")
    status = 504 if kind in (ErrorKind.GRAMMAR_TIMEOUT, ErrorKind.DEADLINE) else 500
    return ApiError(status, message, kind="server_error", code=kind.value)


def server_failed(error: Exception) -> ApiError:
    """500: a mistake of the server's own."""
    message = f"the server failed on this request ({type(error).__name__}); its log has the details"
    return ApiError(500, message, kind="server_error", code="internal_error")


def model_not_found(asked: str, served: str) -> ApiError:
    """404: the one model that is here has another name."""
    return ApiError(
        404,
        f"the model '{asked}' is not served here; this server has '{served}'",
        code="model_not_found",
        param="model",
    )


def install(app: FastAPI) -> None:
    """Give every error of an app this shape, those of FastAPI itself included."""
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _bug)


async def _api_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ApiError)
    return JSONResponse(error.body, status_code=error.status, headers=error.headers)


async def _validation_error(_: Request, error: Exception) -> JSONResponse:
    """The first thing that is wrong with a body, by the field's name."""
    assert isinstance(error, RequestValidationError)
    first = _most_telling(error.errors())
    context = first.get("ctx") or {}
    if first["type"] == "json_invalid":
        message, param = f"the body is not JSON: {context.get('error', first['msg'])}", None
    else:
        named = ".".join(str(part) for part in first["loc"][1:] if not _is_branch(part))
        param = context.get("param") or named or None
        message = first["msg"] if "param" in context else f"{param or 'the body'}: {first['msg']}"
    refused = ApiError(400, message, code="invalid_value", param=param)
    return JSONResponse(refused.body, status_code=refused.status)


def _most_telling(errors: Sequence[Any]) -> Any:
    """Of a field that may be written in several ways, each of which failed: the way whose type is right, if any."""
    if not any(map(_is_branch, errors[0]["loc"][1:])):
        return errors[0]
    field = errors[0]["loc"][:2]
    of_field = [error for error in errors if error["loc"][:2] == field]
    typed = [error for error in of_field if not error["type"].endswith(("_type", "literal_error"))]
    return (typed or sorted(of_field, key=lambda error: -len(error["loc"])))[0]


def _is_branch(part: str | int) -> bool:
    """Whether a part of an error's place names a type among several, which is no word of the API: `list[TextPart]`."""
    if isinstance(part, int) or part.isdigit() or part == "[key]":
        return False
    return not part.isidentifier() or part[0].isupper() or part in ("str", "int", "dict")


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    """Unknown paths and methods."""
    assert isinstance(error, HTTPException)
    refused = ApiError(error.status_code, f"{request.method} {request.url.path}: {error.detail}")
    return JSONResponse(refused.body, status_code=refused.status, headers=error.headers)


async def _bug(_: Request, error: Exception) -> JSONResponse:
    """What nobody thought of. The log has the traceback."""
    failed = server_failed(error)
    return JSONResponse(failed.body, status_code=failed.status)
