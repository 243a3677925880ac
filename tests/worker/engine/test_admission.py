"""What is refused at once, and with which numbers."""

from __future__ import annotations

import pytest

from kvtide_worker.engine.admission import NeverFits, output_tokens

CONTEXT = 2048


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "expected"),
    [
        (100, 50, 50),
        (100, None, 1948),  # what the context has room for
        (100, 1948, 1948),
        (2047, None, 1),
        (2047, 1, 1),
    ],
)
def test_how_much_may_be_generated(prompt: int, max_tokens: int | None, expected: int) -> None:
    assert output_tokens(prompt, max_tokens, CONTEXT) == expected


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "prompt_alone", "says"),
    [
        (100, 1949, False, ["2049", "prompt 100", "max_tokens 1949", "limit is 2048", "max_tokens 1948 or"]),
        (2048, None, True, ["2048 tokens", "2047 or fewer"]),
        (5000, 1, True, ["5000 tokens"]),
        (0, 5, True, ["a prompt of at least 1 token", "has 0 and 5"]),
        (5, 0, False, ["max_tokens of at least 1", "has 5 and 0"]),
    ],
)
def test_what_never_fits(prompt: int, max_tokens: int | None, prompt_alone: bool, says: list[str]) -> None:
    with pytest.raises(NeverFits) as refused:
        output_tokens(prompt, max_tokens, CONTEXT)
    assert refused.value.prompt_alone is prompt_alone
    assert all(part in str(refused.value) for part in says)
