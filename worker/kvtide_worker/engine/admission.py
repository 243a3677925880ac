"""How long a request may become: one that can never end here is refused at once, with the numbers.

The server asks before it queues anything, and the engine before it takes anything: both from here.
"""

from __future__ import annotations


class NeverFits(ValueError):
    """The request can never be a sequence here. prompt_alone: whatever answer it asks for."""

    def __init__(self, message: str, *, prompt_alone: bool) -> None:
        super().__init__(message)
        self.prompt_alone = prompt_alone


def output_tokens(prompt_tokens: int, max_tokens: int | None, context_tokens: int) -> int:
    """How many tokens a request may generate: what it asks for, or where that is None all that has room.

    The context is the only limit: a pool that does not hold one sequence of it is refused at the start (`served_kv`).
    Raises NeverFits with the numbers, and what would fit.
    """
    if prompt_tokens < 1 or (max_tokens is not None and max_tokens < 1):
        raise NeverFits(
            f"the request needs a prompt of at least 1 token and max_tokens of at least 1, but has {prompt_tokens} and "
            f"{max_tokens}",
            prompt_alone=prompt_tokens < 1,
        )
    room = context_tokens - prompt_tokens
    if room < 1:
        raise NeverFits(
            f"the prompt has {prompt_tokens} tokens but the context limit is {context_tokens}; "
            f"shorten it to {context_tokens - 1} or fewer, one token must have room for the answer",
            prompt_alone=True,
        )
    if max_tokens is None:
        return room
    if max_tokens > room:
        raise NeverFits(
            f"the request needs {prompt_tokens + max_tokens} tokens (prompt {prompt_tokens}, max_tokens {max_tokens}) "
            f"but the context limit is {context_tokens}; it fits with max_tokens {room} or fewer",
            prompt_alone=False,
        )
    return max_tokens
