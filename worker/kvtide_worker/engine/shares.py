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
    """Those that are nearest to their end have all that they lack; the oldest one moves in every step.

    prefilling: the oldest one first. budget: tokens, at least one

    Equal prompts are thus computed one after the other, which gives half of their first tokens in half of the time, and
    a short one does not wait behind a long one. A chunk ends where its prompt does, or at a multiple of aligned_tokens,
    as prefix hits do, so that a prompt is computed alike whatever is found of it. The oldest has such a piece first;
    where the budget is less than a piece it is the oldest one's alone, in a chunk that ends anywhere.
    """
    if not prefilling:
        return []
    oldest = prefilling[0]
    piece = cut_aligned(oldest, min(budget, aligned_tokens), aligned_tokens)
    taken = dict.fromkeys(prefilling, 0)
    taken[oldest] = piece or min(oldest.pending_tokens, budget)
    budget -= taken[oldest]
    for request in sorted(prefilling, key=lambda request: request.pending_tokens):
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
