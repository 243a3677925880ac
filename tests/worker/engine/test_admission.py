"""What is refused at once, and with which numbers."""

from __future__ import annotations

import pytest

from kvtide_worker.engine.admission import Capacity


@pytest.mark.parametrize(
    ("capacity", "prompt", "max_tokens", "expected"),
    [
        (Capacity(100, 10, 16), 60, 40, None),
        (Capacity(100, 10, 16), 60, 41, "needs 101 tokens (prompt 60, max_tokens 41) but the context is 100 tokens; "
         "max_tokens of at most 40 would fit"),
        (Capacity(100, 10, 16), 100, 1, "needs 101 tokens (prompt 100, max_tokens 1) but the context is 100 tokens; "
         "a prompt of at most 99 tokens would fit"),
        (Capacity(200, 10, 16), 150, 11, "needs 161 tokens (prompt 150, max_tokens 11) but the KV pool is 10 blocks "
         "of 16, 160 tokens; max_tokens of at most 10 would fit"),
        (Capacity(200, 10, 16), 0, 5, "needs a prompt of at least 1 token and max_tokens of at least 1, "
         "but has 0 and 5"),
        (Capacity(200, 10, 16), 5, 0, "needs a prompt of at least 1 token and max_tokens of at least 1, "
         "but has 5 and 0"),
    ],
)  # fmt: skip
def test_refusal(capacity: Capacity, prompt: int, max_tokens: int, expected: str | None) -> None:
    assert capacity.refusal(prompt, max_tokens) == expected
