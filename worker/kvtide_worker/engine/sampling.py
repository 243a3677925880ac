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
        """One token per row of logits [requests, vocab_size], float32; None where a row is not finite.

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
        probabilities = torch.softmax((logits - logits.max()) / temperature, dim=-1)
        token_ids = None
        if sampling.top_k:
            probabilities, token_ids = probabilities.topk(min(sampling.top_k, len(probabilities)))
            probabilities = probabilities / probabilities.sum()
        if sampling.top_p < 1:
            probabilities, kept = _nucleus(probabilities, sampling.top_p)
            token_ids = kept if token_ids is None else token_ids[kept]
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


def _nucleus(probabilities: torch.Tensor, top_p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The fewest tokens that together have top_p, likeliest first, and their ids; at least one."""
    first = min(_FIRST_CANDIDATES, len(probabilities))
    for count in (first, len(probabilities)):
        likeliest, token_ids = probabilities.topk(count)
        before = likeliest.cumsum(dim=-1) - likeliest
        if before[-1] >= top_p:
            break
    kept = max(int((before < top_p).sum()), 1)
    return likeliest[:kept], token_ids[:kept]
