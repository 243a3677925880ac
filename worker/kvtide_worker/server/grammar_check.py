"""Whether a grammar is one, before anything else is done for its request."""

from __future__ import annotations

import asyncio

from llguidance import LLMatcher

from kvtide_worker.server.errors import ApiError
from kvtide_worker.server.threads import in_thread

CHECK_SECONDS = 2.0
MAX_GRAMMAR_CHARACTERS = 1 << 18

# Checks take milliseconds; as many at once must not starve the requests that stream.
_AT_ONCE = 2
_turns = asyncio.Semaphore(_AT_ONCE)


async def check_grammar(grammar: str, param: str, *, timeout_s: float = CHECK_SECONDS) -> None:
    """Raises ApiError 400 with the reason where llguidance refuses the grammar, or takes longer than the time limit.

    param: the field that it was made of
    """
    if len(grammar) > MAX_GRAMMAR_CHARACTERS:
        raise ApiError(
            400,
            f"{param}: the grammar has {len(grammar)} characters, and at most {MAX_GRAMMAR_CHARACTERS} are taken",
            param=param,
            code="invalid_grammar",
        )
    try:
        async with asyncio.timeout(timeout_s), _turns:
            failed, messages = await in_thread(LLMatcher.validate_grammar_with_warnings, grammar)
    except TimeoutError as error:
        raise ApiError(
            400,
            f"{param}: the grammar was not checked within {timeout_s:g} s; use a smaller schema",
            param=param,
            code="grammar_timeout",
        ) from error
    if failed:
        reason = " ".join(messages[0].split())[:300]
        raise ApiError(400, f"{param}: {reason}", param=param, code="invalid_grammar")
