"""What is refused at once, and with which numbers."""

from __future__ import annotations

import pytest

from kvtide_worker.engine.admission import refusal


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "expected"),
    [
        (60, 40, None),
        (60, 41, "needs 101 tokens (prompt 60, max_tokens 41) but the context is 100 tokens; "
         "max_tokens of at most 40 would fit"),
        (100, 1, "needs 101 tokens (prompt 100, max_tokens 1) but the context is 100 tokens; "
         "a prompt of at most 99 tokens would fit"),
        (0, 5, "needs a prompt of at least 1 token and max_tokens of at least 1, but has 0 and 5"),
        (5, 0, "needs a prompt of at least 1 token and max_tokens of at least 1, but has 5 and 0"),
    ],
)  # fmt: skip
def test_refusal(prompt: int, max_tokens: int, expected: str | None) -> None:
    assert refusal(prompt, max_tokens, max_context_tokens=100) == expected
