"""What changes a request's logits before its next token is chosen: bias, shortest length, penalties."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from kvtide_worker.engine.messages import SamplingParams
from kvtide_worker.engine.request import Request

_FIRST_ROOM = 64


class LogitRules:
    """The rules of one request, which remember the tokens that it has. Their order and meaning are vLLM's.

    eos_token_ids: of the model
    """

    def __init__(self, request: Request, eos_token_ids: Iterable[int], device: torch.device) -> None:
        sampling = request.sampling
        self._request = request
        self._bias = _pairs(sampling.logit_bias, device)
        ends = set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else set(eos_token_ids))
        self._ends = torch.tensor(sorted(ends), dtype=torch.int64, device=device)
        self._seen = _SeenTokens(request, device) if _penalises(sampling) else None

    def apply(self, logits: torch.Tensor) -> None:
        """Change float32 logits [vocab_size] in place."""
        sampling = self._request.sampling
        if self._bias is not None:
            ids, bias = self._bias
            logits[ids] += bias
        if len(self._request.output_token_ids) < sampling.min_tokens:
            logits[self._ends] = -torch.inf
        if self._seen is not None:
            self._seen.penalise(logits, sampling)


def rules_of(request: Request, eos_token_ids: Iterable[int], device: torch.device) -> LogitRules | None:
    """The request's rules; None where it has none, as most."""
    sampling = request.sampling
    if sampling.logit_bias or sampling.min_tokens or _penalises(sampling):
        return LogitRules(request, eos_token_ids, device)
    return None


class _SeenTokens:
    """The different tokens that a request has, and how often each was generated: work grows with these alone, never
    with the vocabulary.

        ids     │ of the prompt │ new ones of the output │ room │
        counts  │ 0 … or more   │ 1 or more              │
    """

    def __init__(self, request: Request, device: torch.device) -> None:
        self._request = request
        of_prompt = sorted(set(request.prompt_token_ids))
        self._places = {token: place for place, token in enumerate(of_prompt)}
        self._ids = torch.tensor(of_prompt + [0] * _FIRST_ROOM, dtype=torch.int64, device=device)
        self._counts = torch.zeros(len(self._ids), dtype=torch.float32, device=device)
        self._counted = 0

    def penalise(self, logits: torch.Tensor, sampling: SamplingParams) -> None:
        """Penalise what was seen so far, in place."""
        for token in self._request.output_token_ids[self._counted :]:
            self._count(token)
        self._counted = len(self._request.output_token_ids)
        ids, counts = self._ids[: len(self._places)], self._counts[: len(self._places)]
        seen = logits[ids]
        if sampling.repetition_penalty != 1:
            seen = torch.where(seen > 0, seen / sampling.repetition_penalty, seen * sampling.repetition_penalty)
        seen = seen - sampling.frequency_penalty * counts - sampling.presence_penalty * (counts > 0)
        logits[ids] = seen

    def _count(self, token: int) -> None:
        place = self._places.setdefault(token, len(self._places))
        if place == len(self._ids):
            self._ids = torch.cat([self._ids, torch.zeros_like(self._ids)])
            self._counts = torch.cat([self._counts, torch.zeros_like(self._counts)])
        self._ids[place] = token
        self._counts[place] += 1


def _penalises(sampling: SamplingParams) -> bool:
    return sampling.repetition_penalty != 1 or sampling.frequency_penalty != 0 or sampling.presence_penalty != 0


def _pairs(bias: dict[int, float], device: torch.device) -> tuple[torch.Tensor, torch.Tensor] | None:
    if not bias:
        return None
    return (
        torch.tensor(list(bias), dtype=torch.int64, device=device),
        torch.tensor(list(bias.values()), dtype=torch.float32, device=device),
    )
