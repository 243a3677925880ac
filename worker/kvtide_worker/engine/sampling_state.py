"""What sampling keeps of each request from one token to the next."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from kvtide_worker.engine.logit_rules import LogitRules, rules_of
from kvtide_worker.engine.request import Request


class SamplingState:
    """Each request's random generator, its own so that its neighbours cannot change it, and the rules of its logits.

    device:    where logits are
    draws_on:  where random numbers are drawn
    """

    def __init__(self, device: torch.device, draws_on: torch.device, eos_token_ids: Iterable[int]) -> None:
        self._device, self._draws_on = device, draws_on
        self._eos_token_ids = tuple(eos_token_ids)
        self._generators: dict[str, torch.Generator] = {}
        self._rules: dict[str, LogitRules | None] = {}

    def rules(self, request: Request) -> LogitRules | None:
        """The request's rules; None where it has none."""
        if request.request_id not in self._rules:
            self._rules[request.request_id] = rules_of(request, self._eos_token_ids, self._device)
        return self._rules[request.request_id]

    def uniform(self, request: Request) -> torch.Tensor:
        """The request's next random number, float32 [1], from 0 to 1."""
        generator = self._generators.get(request.request_id)
        if generator is None:
            generator = torch.Generator(self._draws_on)
            if request.sampling.seed is None:
                generator.seed()
            else:
                generator.manual_seed(request.sampling.seed)
            self._generators[request.request_id] = generator
        return torch.rand(1, generator=generator, device=self._draws_on)

    def forget(self, request_id: str) -> None:
        """Drop what is kept of a request that ended."""
        self._generators.pop(request_id, None)
        self._rules.pop(request_id, None)
