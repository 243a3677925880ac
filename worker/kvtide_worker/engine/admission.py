"""Which requests can never run, whatever else happens: they are refused at once, with the numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Capacity:
    """The most that one request may take."""

    max_context_tokens: int
    num_blocks: int
    block_size_tokens: int

    @property
    def max_request_tokens(self) -> int:
        """Prompt and output of the longest request that runs, alone in the pool."""
        return min(self.max_context_tokens, self.num_blocks * self.block_size_tokens)

    def refusal(self, prompt_tokens: int, max_tokens: int) -> str | None:
        """Why a request of this size can never run, and what would; None where it can."""
        if prompt_tokens < 1 or max_tokens < 1:
            return (
                f"needs a prompt of at least 1 token and max_tokens of at least 1, "
                f"but has {prompt_tokens} and {max_tokens}"
            )
        needed, most = prompt_tokens + max_tokens, self.max_request_tokens
        if needed <= most:
            return None
        limit = f"the context is {self.max_context_tokens} tokens"
        if most < self.max_context_tokens:
            limit = f"the KV pool is {self.num_blocks} blocks of {self.block_size_tokens}, {most} tokens"
        remedy = f"max_tokens of at most {most - prompt_tokens}"
        if prompt_tokens >= most:
            remedy = f"a prompt of at most {most - 1} tokens"
        return (
            f"needs {needed} tokens (prompt {prompt_tokens}, max_tokens {max_tokens}) but {limit}; {remedy} would fit"
        )
