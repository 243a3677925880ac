"""What a step computes, in the order in which the model is given it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kvtide_kernels.attention import SequenceSpan
from kvtide_worker.engine.request import Request
from kvtide_worker.engine.shares import Chunk


@dataclass(slots=True)
class StepBatch:
    """The tokens of all chunks, one chunk behind the other.

    token_ids, positions:  of each token
    spans:                 of each chunk
    sampled:               the requests whose last token is in the step
    scored:                the request of each prompt token whose log probability is wanted
    rows:                  the tokens whose logits are wanted: of `sampled`, then those before the tokens of `scored`
    """

    token_ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    spans: list[SequenceSpan] = field(default_factory=list)
    sampled: list[Request] = field(default_factory=list)
    scored: list[Request] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, chunks: Iterable[Chunk]) -> StepBatch:
        """The step that computes these chunks."""
        batch, scored_rows = cls(), []
        for chunk in chunks:
            request, past = chunk.request, chunk.request.blocks.num_tokens
            first, end = len(batch.token_ids), past + chunk.new_tokens
            batch.token_ids += request.token_ids(past, end)
            batch.positions += range(past, end)
            blocks = request.blocks
            batch.spans.append(SequenceSpan(blocks.tables, past, chunk.new_tokens, blocks.recent_from))
            if request.scores_prompt:
                before = range(max(past, len(request.prompt_logprobs)), min(end, len(request.prompt_token_ids) - 1))
                scored_rows += [first + position - past for position in before]
                batch.scored += [request] * len(before)
            if chunk.new_tokens == request.pending_tokens:
                batch.rows.append(len(batch.token_ids) - 1)
                batch.sampled.append(request)
        batch.rows += scored_rows
        return batch
