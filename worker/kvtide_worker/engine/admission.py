"""Which requests can never run, whatever else happens: they are refused at once, with the numbers."""

from __future__ import annotations


def refusal(prompt_tokens: int, max_tokens: int, max_context_tokens: int) -> str | None:
    """Why a request of this size can never run, and what would; None where it can.

    The context is the only limit: an engine whose pool does not hold one sequence of it does not start
    (`served_kv`).
    """
    if prompt_tokens < 1 or max_tokens < 1:
        return (
            f"needs a prompt of at least 1 token and max_tokens of at least 1, but has {prompt_tokens} and {max_tokens}"
        )
    needed = prompt_tokens + max_tokens
    if needed <= max_context_tokens:
        return None
    remedy = f"max_tokens of at most {max_context_tokens - prompt_tokens}"
    if prompt_tokens >= max_context_tokens:
        remedy = f"a prompt of at most {max_context_tokens - 1} tokens"
    return (
        f"needs {needed} tokens (prompt {prompt_tokens}, max_tokens {max_tokens}) but the context is "
        f"{max_context_tokens} tokens; {remedy} would fit"
    )
