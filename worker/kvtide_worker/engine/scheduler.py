"""What runs in the next step. Decides from counts alone: no tensors, no clock."""

from __future__ import annotations

from bisect import insort
from collections import deque
from dataclasses import dataclass

from kvtide_worker.engine.block_manager import BlockManager
from kvtide_worker.engine.request import Request


@dataclass(frozen=True)
class Chunk:
    """The next new_tokens of one request, to be computed in a step. Its table has the blocks for them."""

    request: Request
    new_tokens: int


class Scheduler:
    """Two queues and one budget of tokens per step.

        waiting ──admit──► running ──► finished
           ▲                  │
           └── preempt, newest first; keeps its generated tokens, recomputes keys and values

    Running requests decode first, oldest first; what is left of the budget goes to prefill in equal shares, so that
    a short prompt does not stand behind a long one. The oldest request is never preempted for another one, and each
    fits the pool alone (`Capacity`), so that every request ends.
    """

    def __init__(self, blocks: BlockManager, *, max_batch_limit: int, step_token_budget: int) -> None:
        """Raises ValueError where the budget would not give each running request one token a step."""
        if step_token_budget < max_batch_limit:
            raise ValueError(
                f"a step of {step_token_budget} tokens cannot run {max_batch_limit} sequences; "
                f"it needs a budget of {max_batch_limit} or a lower batch limit"
            )
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.max_batch_limit = max_batch_limit
        self.batch_limit = max_batch_limit
        self.preemptions = 0
        self._blocks = blocks
        self._step_token_budget = step_token_budget

    @property
    def queued_prompt_tokens(self) -> int:
        """Tokens that prefill has yet to compute, of waiting requests and of running ones."""
        prefilling = (request.pending_tokens for request in self.running if request.pending_tokens > 1)
        return sum(request.num_tokens for request in self.waiting) + sum(prefilling)

    @property
    def expected_output_tokens(self) -> int:
        """Tokens that all requests together may still generate."""
        return sum(request.expected_output_tokens for request in [*self.waiting, *self.running])

    def add(self, request: Request) -> None:
        """Queue a request that `Capacity` does not refuse."""
        self.waiting.append(request)

    def remove(self, request: Request) -> None:
        """Forget a request, finished or not, and free its blocks."""
        if request in self.running:
            self.running.remove(request)
            self._blocks.release(request.table)
        else:
            self.waiting.remove(request)

    def set_batch_limit(self, batch_limit: int) -> None:
        """The most requests that a step may run, from the next one on; kept between 1 and max_batch_limit."""
        self.batch_limit = min(max(batch_limit, 1), self.max_batch_limit)

    def schedule(self) -> list[Chunk]:
        """The next step: decodes, then prefill chunks. Empty only where no request is left."""
        while len(self.running) > self.batch_limit:
            self._requeue_newest()
        preemptions_before = self.preemptions
        decodes = self._decodes()
        # Blocks are short in a step that preempts: an admission would only be preempted in turn.
        if self.preemptions == preemptions_before:
            self._admit()
        decoding = {chunk.request.request_id for chunk in decodes}
        prefilling = [request for request in self.running if request.request_id not in decoding]
        return decodes + self._share(prefilling, self._step_token_budget - len(decodes))

    def _decodes(self) -> list[Chunk]:
        chunks = []
        index = 0
        # Preemption shortens the list at its end: what it takes away has no chunk yet, or is this request itself.
        while index < len(self.running):
            request = self.running[index]
            index += 1
            if request.pending_tokens > 1:
                continue
            while not self._blocks.reserve(request.table, request.num_tokens):
                assert len(self.running) > 1, "a request that does not fit the pool alone was let in"
                self.preemptions += 1
                if self._requeue_newest() is request:
                    break
            else:
                chunks.append(Chunk(request, 1))
        return chunks

    def _requeue_newest(self) -> Request:
        request = self.running.pop()
        self._blocks.release(request.table)
        self.waiting.appendleft(request)
        return request

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self.batch_limit:
            request = self.waiting[0]
            # One block of growth for each running request, or a full pool would preempt what it just let in.
            needed = self._blocks.blocks_for(request.num_tokens) + len(self.running)
            if needed > self._blocks.free_blocks:
                return
            self._blocks.reserve(request.table, request.num_tokens)
            insort(self.running, self.waiting.popleft(), key=lambda other: other.arrival)

    @staticmethod
    def _share(prefilling: list[Request], budget: int) -> list[Chunk]:
        """Max-min fair: what a short prompt leaves of its share goes to the longer ones."""
        chunks = []
        by_need = sorted(prefilling, key=lambda request: request.pending_tokens)
        for index, request in enumerate(by_need):
            new_tokens = min(request.pending_tokens, budget // (len(by_need) - index))
            budget -= new_tokens
            chunks.append(Chunk(request, new_tokens))
        return chunks
