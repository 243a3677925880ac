"""From logits to the next tokens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from kvtide_worker.engine.logprobs import token_logprobs
from kvtide_worker.engine.messages import ErrorKind, SamplingParams, TokenLogprobs
from kvtide_worker.engine.request import Request
from kvtide_worker.engine.sampling_state import SamplingState

# Candidates that top_p looks at first: sorting a whole vocabulary takes longer than a decode step of a small model.
_FIRST_CANDIDATES = 256

# Below this only the likeliest token is ever drawn, and a quotient would leave the range of float32.
LOWEST_TEMPERATURE = 1e-5

NOT_FINITE = "the model gave logits that are not finite"
NOTHING_LEFT = "what the request asks for leaves no token to choose"


@dataclass(frozen=True)
class Sampled:
    """A request's next token. logprobs: where the request asks for them."""

    token_id: int
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True)
class NoToken:
    """Why a request has no next token: it ends here, and no other one does."""

    error: str
    kind: ErrorKind


class Sampler:
    """Chooses tokens; each request has a random generator of its own, so that its neighbours cannot change it.

    Most requests only want the highest logit, which is one operation for all of them; each other one has a row of its
    own made float32, one at a time: a batch's rows would be the largest tensor of a step.
    """

    def __init__(self, device: torch.device, eos_token_ids: Iterable[int] = ()) -> None:
        self._kept = SamplingState(device, device, eos_token_ids)

    def sample(self, logits: torch.Tensor, requests: list[Request]) -> list[Sampled | NoToken]:
        """One token per row of logits [requests, vocab_size], which may be of any dtype and stay as they are.

        Temperature 0 takes the highest logit, the lowest token id among equals.
        """
        best, greedy = logits.max(dim=-1)
        rows = zip(requests, best.isfinite().tolist(), greedy.tolist(), strict=True)
        return [self._choose(logits, row, *known) for row, known in enumerate(rows)]

    def forget(self, request_id: str) -> None:
        """Drop what is kept for a request that ended."""
        self._kept.forget(request_id)

    def _choose(
        self, logits: torch.Tensor, number: int, request: Request, finite: bool, likeliest: int
    ) -> Sampled | NoToken:
        if not finite:
            return NoToken(NOT_FINITE, ErrorKind.NOT_FINITE)
        sampling, rules, grammar = request.sampling, self._kept.rules(request), request.grammar
        token = likeliest
        if rules is not None or grammar is not None or sampling.temperature > 0:
            row = logits[number].to(torch.float32, copy=True)
            if grammar is not None and (failure := grammar.mask(row)) is not None:
                return NoToken(failure, ErrorKind.GRAMMAR)
            if rules is not None:
                rules.apply(row)
            if (rules is not None or grammar is not None) and not row.max().isfinite():
                return NoToken(NOTHING_LEFT, ErrorKind.GRAMMAR)
            token = self._draw(row, request) if sampling.temperature > 0 else int(row.max(dim=-1).indices)
        if grammar is not None:
            grammar.accept(token)
        if sampling.logprobs is None:
            return Sampled(token)
        return Sampled(token, token_logprobs(logits[number], token, sampling.logprobs))

    def _draw(self, logits: torch.Tensor, request: Request) -> int:
        """A token of float32 logits [vocab_size], which are overwritten."""
        sampling = request.sampling
        scaled = logits.div_(max(sampling.temperature, LOWEST_TEMPERATURE))
        probabilities, token_ids = _candidates(torch.softmax(scaled, dim=-1), sampling)
        # The inverse of the distribution function takes one random number, where torch.multinomial takes one for each
        # token of the vocabulary: twenty times as long.
        reached = probabilities.cumsum(dim=-1)
        total = reached[-1:]
        target = self._kept.uniform(request).mul_(total)
        # Rounding must not reach past the last token that has a probability.
        target = torch.minimum(target, torch.nextafter(total, torch.zeros_like(total)))
        choice = torch.searchsorted(reached, target, right=True)
        return int(choice if token_ids is None else token_ids[choice])


def _candidates(probabilities: torch.Tensor, sampling: SamplingParams) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The probabilities that may be drawn, and their token ids where these are not all in order.

    min_p first: those with that share of the likeliest one's. Of them the top_k likeliest, and of these the fewest that
    have top_p of them, at least one.
    """
    if sampling.min_p > 0:
        probabilities.masked_fill_(probabilities < sampling.min_p * probabilities.max(), 0)
        probabilities.div_(probabilities.sum())
    if not sampling.top_k and sampling.top_p >= 1:
        return probabilities, None
    most = min(sampling.top_k or len(probabilities), len(probabilities))
    for count in (most,) if sampling.top_k else (min(_FIRST_CANDIDATES, most), most):
        likeliest, token_ids = probabilities.topk(count)
        if sampling.top_k:
            likeliest.div_(likeliest.sum())
        before = likeliest.cumsum(dim=-1).sub_(likeliest)
        if before[-1] >= sampling.top_p:
            break
    kept = max(int(torch.count_nonzero(before < sampling.top_p)), 1)
    return likeliest[:kept], token_ids[:kept]
