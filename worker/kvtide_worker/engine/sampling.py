"""From logits to the next tokens."""

from __future__ import annotations

import torch

from kvtide_worker.engine.request import Request

# Candidates that top_p looks at first: sorting a whole vocabulary takes longer than a decode step of a small model.
_FIRST_CANDIDATES = 256

# Below this only the likeliest token is ever drawn, and a quotient would leave the range of float32.
_LOWEST_TEMPERATURE = 1e-5


class Sampler:
    """Chooses tokens; each request has a random generator of its own, so that its neighbours cannot change it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._generators: dict[str, torch.Generator] = {}

    def sample(self, logits: torch.Tensor, requests: list[Request]) -> list[int | None]:
        """One token per row of logits [requests, vocab_size]; None where a row is not finite.

        Temperature 0 takes the highest logit, the lowest token id among equals.
        """
        best, greedy = logits.max(dim=-1)
        tokens: list[int | None] = greedy.tolist()
        for row, (request, finite) in enumerate(zip(requests, best.isfinite().tolist(), strict=True)):
            if not finite:
                tokens[row] = None
            elif request.sampling.temperature > 0:
                tokens[row] = self._draw(logits[row], request)
        return tokens

    def forget(self, request_id: str) -> None:
        """Drop the generator of a request that ended."""
        self._generators.pop(request_id, None)

    def _draw(self, logits: torch.Tensor, request: Request) -> int:
        sampling = request.sampling
        temperature = max(sampling.temperature, _LOWEST_TEMPERATURE)
        # One row at a time is made float32, and in place: a batch's rows would be the largest tensor of a step.
        scaled = logits.to(torch.float32, copy=True)
        probabilities = torch.softmax(scaled.sub_(logits.max()).div_(temperature), dim=-1)
        del scaled
        token_ids = None
        if sampling.top_k or sampling.top_p < 1:
            probabilities, token_ids = _candidates(probabilities, sampling.top_k, sampling.top_p)
        choice = torch.multinomial(probabilities, 1, generator=self._generator(request))
        return int(choice if token_ids is None else token_ids[choice])

    def _generator(self, request: Request) -> torch.Generator:
        generator = self._generators.get(request.request_id)
        if generator is None:
            generator = torch.Generator(self._device)
            if request.sampling.seed is None:
                generator.seed()
            else:
                generator.manual_seed(request.sampling.seed)
            self._generators[request.request_id] = generator
        return generator


def _candidates(probabilities: torch.Tensor, top_k: int, top_p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the top_k likeliest (0: all), the fewest that have top_p of these, at least one: likeliest first, and ids."""
    most = min(top_k or len(probabilities), len(probabilities))
    for count in (most,) if top_k else (min(_FIRST_CANDIDATES, most), most):
        likeliest, token_ids = probabilities.topk(count)
        if top_k:
            likeliest.div_(likeliest.sum())
        before = likeliest.cumsum(dim=-1).sub_(likeliest)
        if before[-1] >= top_p:
            break
    kept = max(int(torch.count_nonzero(before < top_p)), 1)
    return likeliest[:kept], token_ids[:kept]
