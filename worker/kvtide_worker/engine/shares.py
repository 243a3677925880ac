"""How a step's tokens are shared by the prompts that are still to be computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvtide_worker.engine.request import Request


@dataclass(frozen=True, slots=True)
class Chunk:
    """The next new_tokens of one request, to be computed in a step. Its tables have the blocks for them."""

    request: Request
    new_tokens: int


def share_budget(prefilling: Sequence[Request], budget: int, aligned_tokens: int) -> list[Chunk]:
    """Max-min fair: what a short prompt leaves of its share goes to the longer ones.

    prefilling: first the one that must move in every step. budget: tokens, at least one for each.

    A chunk ends where its prompt does, or at a multiple of aligned_tokens, as prefix hits do, so that a prompt is
    computed alike whatever is found of it. What that leaves of the budget goes to those that are nearest to their end:
    where shares are less than a piece, prompts are computed one after the other. The first one has a piece where its
    share is less; where the budget is less than a piece it is the first one's alone, in a chunk that ends anywhere.
    """
    if not prefilling:
        return []
    first, by_need = prefilling[0], sorted(prefilling, key=lambda request: request.pending_tokens)
    taken = dict.fromkeys(by_need, 0)
    sharers = list(by_need)
    if not cut_aligned(first, budget // len(sharers), aligned_tokens):
        piece = cut_aligned(first, min(budget, aligned_tokens), aligned_tokens)
        taken[first] = piece or min(first.pending_tokens, budget)
        budget -= taken[first]
        sharers.remove(first)
    to_share = budget
    for index, request in enumerate(sharers):
        share = min(to_share // (len(sharers) - index), request.pending_tokens)
        to_share -= share
        taken[request] = cut_aligned(request, share, aligned_tokens)
        budget -= taken[request]
    for request in by_need:
        more = max(0, cut_aligned(request, taken[request] + budget, aligned_tokens) - taken[request])
        taken[request] += more
        budget -= more
    return [Chunk(request, taken[request]) for request in prefilling if taken[request]]


def cut_aligned(request: Request, most_tokens: int, aligned_tokens: int) -> int:
    """So many of the request's next tokens, or fewer, down to none, that they end where its prompt or a piece does.

    One token is not left alone for the end where that can be helped: it would be a decode, which sums in another
    order.
    """
    past, pending = request.blocks.num_tokens, request.pending_tokens
    if most_tokens >= pending:
        return pending
    end = (past + most_tokens) // aligned_tokens * aligned_tokens
    if past + pending - end == 1 and end - aligned_tokens > past:
        end -= aligned_tokens
    return max(0, end - past)
