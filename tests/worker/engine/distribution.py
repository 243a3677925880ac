"""What sampling is to draw from, by transformers' own filters, and whether it did."""

from __future__ import annotations

from collections import Counter

import torch
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper


def transformers_probabilities(
    logits: torch.Tensor, temperature: float, top_k: int, top_p: float, min_p: float
) -> torch.Tensor:
    """Probabilities [vocab_size] of logits [vocab_size]."""
    expected = TemperatureLogitsWarper(temperature)(torch.tensor([[0]]), logits[None].clone())
    if min_p:
        expected = MinPLogitsWarper(min_p)(torch.tensor([[0]]), expected)
    if top_k:
        expected = TopKLogitsWarper(top_k)(torch.tensor([[0]]), expected)
    if top_p < 1:
        expected = TopPLogitsWarper(top_p)(torch.tensor([[0]]), expected)
    return expected.softmax(-1)[0]


def assert_drawn_from(probabilities: torch.Tensor, seen: Counter[int]) -> None:
    """Fails where a token was drawn that has no probability, or one too often or too rarely for its own."""
    times = seen.total()
    assert all(probabilities[token] > 0 for token in seen)
    for token, probability in enumerate(probabilities.tolist()):
        # Five standard deviations of a binomial draw, and one draw of slack for the rare tokens.
        slack = 5 * (times * probability * (1 - probability)) ** 0.5 + 1
        assert abs(seen[token] - times * probability) <= slack
