"""Bearer tokens: of clients on the API port, of the operator on the admin port."""

from __future__ import annotations

import hmac
import os
from pathlib import Path

from fastapi import Request

from kvtide_worker.server.errors import ApiError
from kvtide_worker.server.failures import CannotStart

API_KEY_VARIABLE = "KVTIDE_API_KEY"


class BearerToken:
    """Lets a request pass that carries the token; compared in constant time."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, request: Request) -> None:
        """Raises ApiError 401 for a request without the token, or with another one."""
        given = request.headers.get("authorization", "").encode()
        if not hmac.compare_digest(given, self._expected):
            raise ApiError(
                401,
                "this needs the header 'Authorization: Bearer TOKEN' with the right token",
                kind="authentication_error",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )


def read_token(file: Path) -> str:
    """The token in a file, without the white space around it. Raises CannotStart where there is none."""
    token = file.read_text(encoding="utf-8").strip()
    if not token:
        raise CannotStart(f"{file} is empty; write a token into it")
    return token


def client_key(file: Path | None) -> str | None:
    """What clients of the API must send: from the file, or else from the environment; None where neither has one.

    Raises CannotStart for a file without one.
    """
    if file is not None:
        return read_token(file)
    return os.environ.get(API_KEY_VARIABLE, "").strip() or None
