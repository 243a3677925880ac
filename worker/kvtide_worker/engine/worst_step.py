"""The steps that take the most memory, run once at the start so that it is known before anybody asks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kvtide_kernels.attention import AttentionStep, HeldTable, PagedAttention, SequenceSpan
from kvtide_kernels.pool import KVPool
from kvtide_worker.engine.device_sampling import sampler_for
from kvtide_worker.engine.messages import SamplingParams
from kvtide_worker.engine.peak import AllocationPeak
from kvtide_worker.engine.request import Request
from kvtide_worker.models.model import Model

# Every row is drawn from its whole vocabulary: nothing else takes as much of the sampler.
_DRAWN = SamplingParams(max_tokens=1, temperature=1.0, top_p=0.999999, seed=0)


@dataclass(frozen=True)
class _Share:
    """A sequence's share of a step, in tokens."""

    past: int
    new: int


@dataclass(frozen=True)
class _FirstLayers:
    """A planned step that attends in the first layer of each table alone: the others would take the same memory."""

    step: AttentionStep
    layers: frozenset[int]

    def run(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """As `AttentionStep.run`; zeros for the other layers."""
        if layer in self.layers:
            return self.step.run(layer, query, key, value)
        return torch.zeros_like(query, memory_format=torch.contiguous_format)


class WorstStep:
    """Runs the steps that take the most memory over a pool that holds one sequence of max_context_tokens.

    batch: sequences that a step runs at most
    What the steps write stays in the pool's blocks.
    """

    def __init__(
        self, model: Model, attention: PagedAttention, pool: KVPool, *, max_context_tokens: int, batch: int
    ) -> None:
        self._model = model
        self._attention = attention
        self._pool = pool
        self._max_context_tokens = max_context_tokens
        self._batch = batch
        self._first_layers = frozenset(table.layers[0] for table in pool.layout.tables)

    def measure_bytes(self) -> int:
        """The peak of a step's tensors: of one that is full of prefill, and of one with a full batch."""
        # What a first step sets up for good belongs to the process, not to each step.
        self._run([_Share(self._max_context_tokens - 1, 1)])
        budget = self._pool.layout.step_tokens
        # As few chunks of prefill as fill the budget beside the decodes.
        chunks = min(self._batch, max(1, -(-(budget - self._batch) // max(1, self._max_context_tokens - 1))))
        decodes = self._decodes(min(self._batch, budget) - chunks)
        full_batch = decodes + self._prefill(budget - len(decodes), chunks)
        return max(self._run(self._prefill(budget, self._batch)), self._run(full_batch))

    def _prefill(self, tokens: int, sequences: int) -> list[_Share]:
        """Chunks at the end of the context, which attend to the most; one with a past has a mask of its own."""
        shares: list[_Share] = []
        while tokens and len(shares) < sequences:
            new = min(tokens, max(1, self._max_context_tokens - 1))
            shares.append(_Share(self._max_context_tokens - new, new))
            tokens -= new
        return shares

    def _decodes(self, sequences: int) -> list[_Share]:
        """One at the end of the context. The others have a power of two of blocks, which fills a group of sequences
        that are attended to at once, and one token in the last block, of which the rest is masked."""
        block_size = self._pool.layout.block_size
        whole = -(-self._max_context_tokens // block_size)
        blocks = 1 << (whole.bit_length() - 1)
        return [
            _Share(past, 1)
            for past in [self._max_context_tokens - 1, *[(blocks - 1) * block_size] * (sequences - 1)][:sequences]
        ]

    def _run(self, shares: Sequence[_Share]) -> int:
        device = self._pool.storage.device
        sampler = sampler_for(device)
        requests = [Request(str(index), index, [0], _DRAWN) for index in range(len(shares))]
        with AllocationPeak(device) as peak:
            positions = [position for share in shares for position in range(share.past, share.past + share.new)]
            ends = torch.tensor([share.new for share in shares], device=device).cumsum(0) - 1
            spans = [SequenceSpan(self._tables(share), share.past, share.new) for share in shares]
            logits = self._model.forward(
                torch.zeros(len(positions), dtype=torch.int64, device=device),
                torch.tensor(positions, device=device),
                _FirstLayers(self._attention.plan(spans), self._first_layers),
                ends,
            )
            sampler.sample(logits, requests)
        return peak.peak_bytes

    def _tables(self, share: _Share) -> list[HeldTable]:
        """One after another in the pool, which holds what a sequence of the whole context takes in any step.

        Any number of sequences share them: what they write and read does not matter here, but for being what the
        tables' layers write. Numbers of any other kind would not be sampled from.
        """
        layout, tables, start = self._pool.layout, [], 0
        for table in layout.tables:
            first = table.first_needed(share.past) // layout.block_size
            end = -(-(share.past + share.new) // layout.block_size)
            recent = range(start, start + layout.recent_blocks)
            tables.append(HeldTable(range(recent.stop, recent.stop + end - first), recent, first))
            start = recent.stop + table.sequence_blocks(self._max_context_tokens, layout.block_size)
            if table.window is not None:
                start += -(-(layout.step_tokens - 1) // layout.block_size)
        assert start <= self._pool.num_blocks, "a pool that does not hold one sequence is refused"
        return tables
