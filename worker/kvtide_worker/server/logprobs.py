"""Log probabilities in OpenAI's words: one way for chat, an older one for completions, and vLLM's for prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvtide_worker.engine.messages import TokenLogprobs
from kvtide_worker.text.token_bytes import readable

# JSON has no infinity; OpenAI writes this for what is next to impossible.
_LEAST = -9999.0


@dataclass(frozen=True)
class ScoredToken:
    """A token of a choice's text. offset: of its first character. scores: None for a prompt's first token."""

    token_id: int
    offset: int
    scores: TokenLogprobs | None


def chat_logprobs(tokens: Sequence[ScoredToken], spelling: Sequence[bytes]) -> dict[str, Any]:
    """`logprobs` of a chat's choice. spelling: the bytes of each token id."""
    content = []
    for token in tokens:
        assert token.scores is not None, "an answer's tokens are all scored"
        top = [_chat_entry(spelling[token_id], logprob) for token_id, logprob in token.scores.top]
        content.append({**_chat_entry(spelling[token.token_id], token.scores.logprob), "top_logprobs": top})
    return {"content": content, "refusal": None}


def completion_logprobs(tokens: Sequence[ScoredToken], spelling: Sequence[bytes]) -> dict[str, Any]:
    """`logprobs` of a completion's choice; of two likely tokens that read the same, the likelier one is told."""
    top: list[dict[str, float] | None] = []
    for token in tokens:
        if token.scores is None:
            top.append(None)
            continue
        likeliest: dict[str, float] = {}
        for token_id, logprob in [*token.scores.top, (token.token_id, token.scores.logprob)]:
            likeliest.setdefault(_completion_text(spelling[token_id]), _finite(logprob))
        top.append(likeliest)
    return {
        "tokens": [_completion_text(spelling[token.token_id]) for token in tokens],
        "token_logprobs": [None if token.scores is None else _finite(token.scores.logprob) for token in tokens],
        "top_logprobs": top,
        "text_offset": [token.offset for token in tokens],
    }


def prompt_logprobs(prompt: Sequence[TokenLogprobs], spelling: Sequence[bytes]) -> list[dict[str, Any] | None]:
    """vLLM's `prompt_logprobs`: by token id, and nothing for the first token."""
    told: list[dict[str, Any] | None] = [None]
    for place in prompt:
        ranked = [(place.token_id, place.logprob, place.rank)]
        ranked += [(token, logprob, rank) for rank, (token, logprob) in enumerate(place.top, start=1)]
        told.append(
            {
                str(token_id): {
                    "logprob": _finite(logprob),
                    "rank": rank,
                    "decoded_token": readable(spelling[token_id]),
                }
                for token_id, logprob, rank in ranked
            }
        )
    return told


def _chat_entry(spelled: bytes, logprob: float) -> dict[str, Any]:
    return {"token": readable(spelled), "logprob": _finite(logprob), "bytes": list(spelled)}


def _completion_text(spelled: bytes) -> str:
    text = readable(spelled)
    return text if text.encode() == spelled else f"bytes:{text}"


def _finite(logprob: float) -> float:
    return max(logprob, _LEAST)
