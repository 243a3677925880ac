"""From logits to the next tokens on a device that computes beside the host, which waits for it once a step.

Everything is chosen there, for a block of requests at a time, and read in one copy. The host still has to do three
things: it draws each request's random number (its own generator, so that a seed gives the same numbers on every device
and whoever shares the step), it computes the mask of a grammar, and it reads log probabilities row by row, where they
are asked for: each such row is waited for once more. Not yet run on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from kvtide_sizing.memory.activations import GPU_DRAWN_ROWS
from kvtide_worker.engine.logprobs import token_logprobs
from kvtide_worker.engine.messages import ErrorKind
from kvtide_worker.engine.request import Request
from kvtide_worker.engine.sampling import (
    LOWEST_TEMPERATURE,
    NOT_FINITE,
    NOTHING_LEFT,
    NoToken,
    Sampled,
    Sampler,
)
from kvtide_worker.engine.sampling_state import SamplingState
from kvtide_worker.engine.upload import on_device

_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True)
class _Wishes:
    """What a block of requests is drawn by, float32 [rows, 1] each; top_k is the vocabulary's size for none."""

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    uniform: torch.Tensor


class DeviceSampler:
    """Chooses tokens as `Sampler` does, rows side by side."""

    def __init__(self, device: torch.device, eos_token_ids: Iterable[int] = ()) -> None:
        self._device = device
        self._kept = SamplingState(device, torch.device("cpu"), eos_token_ids)

    def sample(self, logits: torch.Tensor, requests: list[Request]) -> list[Sampled | NoToken]:
        """As `Sampler.sample`: one token per row of logits [requests, vocab_size], which stay as they are."""
        failures: dict[int, str] = {}
        best, chosen = logits.max(dim=-1)
        allowed = torch.ones_like(chosen)
        for block in self._blocks(requests):
            rows = on_device(_padded(block), self._device)
            wide = logits[rows].to(torch.float32)
            for place, number in enumerate(block):
                if (failure := self._change(wide[place], requests[number])) is not None:
                    failures[number] = failure
            highest, likeliest = wide.max(dim=-1)
            if requests[block[0]].sampling.temperature > 0:
                wishes = self._wishes([requests[number] for number in block], vocab_size=logits.shape[1])
                likeliest = _drawn(wide, wishes, is_cut=_is_cut(requests[block[0]]))
            where = rows[: len(block)]
            chosen[where] = likeliest[: len(block)]
            allowed[where] = highest[: len(block)].isfinite().to(allowed.dtype)
        # The one time that the host waits.
        found = torch.stack([best.isfinite().to(chosen.dtype), allowed, chosen]).tolist()
        return [
            self._result(logits[row], request, failures.get(row), *known)
            for row, (request, *known) in enumerate(zip(requests, *found, strict=True))
        ]

    def forget(self, request_id: str) -> None:
        """As `Sampler.forget`."""
        self._kept.forget(request_id)

    def _blocks(self, requests: Sequence[Request]) -> Iterator[list[int]]:
        """Numbers of requests that are computed together: those that take their highest logit once rules or a grammar
        have changed it, those that draw from all tokens, and those that draw from some. The others take what is highest
        as it is.

        A request's kind hangs on itself alone, and all blocks have the same shape: sums are made in an order that hangs
        on it.
        """
        kinds: dict[tuple[bool, bool], list[int]] = {}
        for number, request in enumerate(requests):
            draws = request.sampling.temperature > 0
            if draws or request.grammar is not None or self._kept.rules(request) is not None:
                kinds.setdefault((draws, draws and _is_cut(request)), []).append(number)
        for numbers in kinds.values():
            for start in range(0, len(numbers), GPU_DRAWN_ROWS):
                yield numbers[start : start + GPU_DRAWN_ROWS]

    def _change(self, row: torch.Tensor, request: Request) -> str | None:
        """Apply the grammar and the rules to float32 logits in place; what is wrong with the grammar."""
        if request.grammar is not None and (failure := request.grammar.mask(row)) is not None:
            return failure
        if (rules := self._kept.rules(request)) is not None:
            rules.apply(row)
        return None

    def _wishes(self, requests: Sequence[Request], *, vocab_size: int) -> _Wishes:
        sampling = [request.sampling for request in requests]
        columns = (
            [max(one.temperature, LOWEST_TEMPERATURE) for one in sampling],
            [float(min(one.top_k or vocab_size, vocab_size)) for one in sampling],
            [one.top_p for one in sampling],
            [one.min_p for one in sampling],
            [float(self._kept.uniform(request)) for request in requests],
        )
        flat = on_device([value for column in columns for value in _padded(column)], self._device, torch.float32)
        return _Wishes(*flat.view(len(columns), GPU_DRAWN_ROWS, 1))

    def _result(
        self, logits: torch.Tensor, request: Request, failure: str | None, finite: int, allowed: int, token: int
    ) -> Sampled | NoToken:
        if not finite:
            return NoToken(NOT_FINITE, ErrorKind.NOT_FINITE)
        if failure is not None:
            return NoToken(failure, ErrorKind.GRAMMAR)
        if not allowed:
            return NoToken(NOTHING_LEFT, ErrorKind.GRAMMAR)
        if request.grammar is not None:
            request.grammar.accept(token)
        wanted = request.sampling.logprobs
        return Sampled(token) if wanted is None else Sampled(token, token_logprobs(logits, token, wanted))


def sampler_for(device: torch.device, eos_token_ids: Iterable[int] = ()) -> Sampler | DeviceSampler:
    """Rows side by side where the host would wait for each; one after another, in less memory, where it computes."""
    return Sampler(device, eos_token_ids) if device.type == "cpu" else DeviceSampler(device, eos_token_ids)


def _padded(values: Sequence[_Number]) -> list[_Number]:
    """As many as a block has."""
    return list(values) + [values[0]] * (GPU_DRAWN_ROWS - len(values))


def _is_cut(request: Request) -> bool:
    return request.sampling.top_k > 0 or request.sampling.top_p < 1


def _drawn(logits: torch.Tensor, wishes: _Wishes, *, is_cut: bool) -> torch.Tensor:
    """Tokens [rows] of float32 logits [rows, vocab_size], which are overwritten; filters in the order of `Sampler`.

    A token is where the sum of probabilities before it reaches the request's random number (the inverse of the
    distribution function). is_cut: whether likelier tokens come first, for top_k and top_p.
    """
    probabilities = torch.softmax(logits.div_(wishes.temperature), dim=-1)
    floor = wishes.min_p * probabilities.amax(dim=-1, keepdim=True)
    probabilities.masked_fill_(probabilities < floor, 0)
    probabilities.div_(_total_where(wishes.min_p > 0, probabilities))
    token_ids = None
    if is_cut:
        probabilities, token_ids = probabilities.sort(dim=-1, descending=True, stable=True)
        vocab_size = logits.shape[1]
        place = torch.arange(vocab_size, device=logits.device)
        probabilities.masked_fill_(place >= wishes.top_k, 0)
        probabilities.div_(_total_where(wishes.top_k < vocab_size, probabilities))
        dropped = probabilities.cumsum(dim=-1).sub_(probabilities) >= wishes.top_p
        dropped[:, 0] = False
        probabilities.masked_fill_(dropped, 0)
    reached = probabilities.cumsum(dim=-1)
    total = reached[:, -1:]
    # Rounding must not reach past the last token that has a probability.
    target = torch.minimum(wishes.uniform * total, torch.nextafter(total, torch.zeros_like(total)))
    # Of rows that are not numbers, which fail, no place is found.
    places = torch.searchsorted(reached, target, right=True).clamp_(max=logits.shape[1] - 1)
    return (places if token_ids is None else token_ids.gather(1, places))[:, 0]


def _total_where(wanted: torch.Tensor, probabilities: torch.Tensor) -> torch.Tensor:
    """What rows are divided by to add up to one; where that is not wanted, 1."""
    total = probabilities.sum(dim=-1, keepdim=True)
    return torch.where(wanted, total, torch.ones_like(total))
