"""The Secret with the token of the workers' admin port."""

import base64
from collections.abc import Mapping
from typing import Any

from kvtide_operator.api.resource import LLMDeployment
from kvtide_operator.children.manifest import Manifest, child
from kvtide_operator.children.worker_template import admin_secret_name

TOKEN_KEY = "token"  # noqa: S105  the key's name, not a token


def admin_secret(resource: LLMDeployment, token: str) -> Manifest:
    """Made once: workers read the token at their start, so a new one would lock the operator out."""
    encoded = base64.b64encode(token.encode()).decode()
    return child(
        resource,
        "v1",
        "Secret",
        admin_secret_name(resource),
        {"type": "Opaque", "data": {TOKEN_KEY: encoded}},
    )


def token_of(secret: Mapping[str, Any] | None) -> str | None:
    """The token in a live Secret, None where there is none."""
    encoded = ((secret or {}).get("data") or {}).get(TOKEN_KEY)
    return base64.b64decode(encoded).decode() if encoded else None
