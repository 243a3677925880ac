"""What a request asks of sampling, in the engine's words."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

from kvtide_worker.engine.messages import SamplingParams
from kvtide_worker.server.protocol import CompletionRequest, GenerationRequest


def choices(body: GenerationRequest, max_tokens: int, eos_token_ids: Iterable[int]) -> list[SamplingParams]:
    """For each of the `n` choices of one prompt. OpenAI's defaults where the request says nothing.

    eos_token_ids: the tokenizer's ends, which count beside the model's own
    """
    stop = list(body.stop_token_ids or [])
    if not body.ignore_eos:
        stop.extend(eos_token_ids)
    echoed = body.logprobs if isinstance(body, CompletionRequest) and body.echo else None
    wanted = [top for top in (body.prompt_logprobs, echoed) if top is not None]
    first = SamplingParams(
        max_tokens=max_tokens,
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=max(0, body.top_k or 0),
        min_p=body.min_p or 0.0,
        repetition_penalty=1.0 if body.repetition_penalty is None else body.repetition_penalty,
        frequency_penalty=body.frequency_penalty or 0.0,
        presence_penalty=body.presence_penalty or 0.0,
        logit_bias=body.token_biases,
        seed=body.seed,
        stop_token_ids=tuple(stop),
        ignore_eos=body.ignore_eos,
        min_tokens=body.min_tokens,
        logprobs=body.top_logprobs_wanted,
        prompt_logprobs=max(wanted, default=None),
    )
    return [msgspec.structs.replace(first, seed=choice_seed(body.seed, choice)) for choice in range(body.n)]


def choice_seed(seed: int | None, choice: int) -> int | None:
    """The seed of a later choice: its own, and the same each time. Choice 0 has the request's, as if it were alone."""
    if seed is None or choice == 0:
        return seed
    digest = hashlib.sha256(f"{seed}:{choice}".encode()).digest()
    return int.from_bytes(digest[:8], signed=True)
