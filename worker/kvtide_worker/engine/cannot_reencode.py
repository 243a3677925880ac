"""Why the pool is not stored as somebody asked."""

from __future__ import annotations

from kvtide_worker.engine.messages import ReencodeError


class CannotReencode(ValueError):
    """The pool cannot be stored so, or not now, or this failed. The message is for a person."""

    def __init__(self, message: str, kind: ReencodeError) -> None:
        super().__init__(message)
        self.kind = kind
