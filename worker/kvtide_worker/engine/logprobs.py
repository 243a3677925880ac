"""Log probabilities of tokens, as the model gave them."""

from __future__ import annotations

import torch

from kvtide_worker.engine.messages import TokenLogprobs


def token_logprobs(logits: torch.Tensor, token_id: int, top: int) -> TokenLogprobs:
    """Of one token and of the `top` likeliest ones; logits [vocab_size], of any dtype, stay as they are.

    log p = logit - log Σ exp(logits), in float32; takes one float32 row beside the logits.
    """
    row = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
    chosen = row[token_id]
    rank = int(torch.count_nonzero(row > chosen)) + 1
    likeliest: list[tuple[int, float]] = []
    if top:
        values, ids = row.topk(min(top, len(row)))
        likeliest = list(zip(ids.tolist(), values.tolist(), strict=True))
    return TokenLogprobs(token_id, float(chosen), rank, likeliest)
