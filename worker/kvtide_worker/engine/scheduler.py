"""What runs in the next step. Decides from counts alone: no tensors, no clock."""

from __future__ import annotations

from bisect import insort
from collections import deque
from dataclasses import dataclass

from kvtide_worker.engine.block_manager import BlockManager
from kvtide_worker.engine.request import Request


@dataclass(frozen=True)
class Chunk:
    """The next new_tokens of one request, to be computed in a step. Its tables have the blocks for them."""

    request: Request
    new_tokens: int


class Scheduler:
    """Two queues and one budget of tokens per step.

        waiting ──admit──► running ──► finished
           ▲                  │
           └── preempt, newest first; keeps its generated tokens, recomputes keys and values

    Running requests decode first, oldest first; what is left of the budget goes to prefill in equal shares, so that
    a short prompt does not stand behind a long one. The oldest request is never preempted for another one, and each
    fits the pool alone (`served_kv`), so that every request ends.

    A step has at most as many rows of logits as sequences may run: so much memory was measured. A request whose prompt
    gets log probabilities has a row for each token, and its chunks are cut to the rows that the others leave.

    A request is let in with all blocks that its tokens so far will ever hold between two steps. What windowed tables
    hold beyond that while a step runs is kept free at admission; where decodes have grown into it, a chunk is cut.
    """

    def __init__(self, blocks: BlockManager, *, max_batch_limit: int) -> None:
        """Raises ValueError where a step of the layout's tokens would not give each running request one."""
        if blocks.layout.step_tokens < max_batch_limit:
            raise ValueError(
                f"a step of {blocks.layout.step_tokens} tokens cannot run {max_batch_limit} sequences; "
                f"it needs a budget of {max_batch_limit} or a lower batch limit"
            )
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.max_batch_limit = max_batch_limit
        self.batch_limit = max_batch_limit
        self.preemptions = 0
        self._blocks = blocks

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
        """Queue a request that is not refused (`refusal`)."""
        self.waiting.append(request)

    def remove(self, request: Request) -> None:
        """Forget a request, finished or not, and free its blocks."""
        if request in self.running:
            self.running.remove(request)
            self._blocks.release(request.blocks)
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
        shares = self._share(prefilling, self._blocks.layout.step_tokens - len(decodes))
        return self._prefills(shares, decodes)

    def _decodes(self) -> list[Chunk]:
        chunks = []
        index = 0
        # Preemption shortens the list at its end: what it takes away has no chunk yet, or is this request itself.
        while index < len(self.running):
            request = self.running[index]
            index += 1
            if request.pending_tokens > 1:
                continue
            while not self._blocks.reserve(request.blocks, request.num_tokens):
                if self._preempt_newest() is request:
                    break
            else:
                chunks.append(Chunk(request, 1))
        return chunks

    def _prefills(self, shares: list[Chunk], decodes: list[Chunk]) -> list[Chunk]:
        """Decodes and prefill chunks together, each of these cut to what the free blocks hold, oldest first."""
        chunks = list(decodes)
        for share in self._within_rows(sorted(shares, key=lambda chunk: chunk.request.arrival), len(decodes)):
            if not share.request.blocks.tables:
                continue  # preempted for the oldest one
            new_tokens = self._cut(share)
            while not new_tokens and share.request is self.running[0]:
                victim = self._preempt_newest()
                chunks = [chunk for chunk in chunks if chunk.request is not victim]
                new_tokens = self._cut(share)
            if new_tokens:
                chunks.append(Chunk(share.request, new_tokens))
        return chunks

    def _within_rows(self, shares: list[Chunk], decodes: int) -> list[Chunk]:
        """The shares with those cut that have a row of logits for each token."""
        spare = self.max_batch_limit - decodes - len(shares)
        cut = []
        for share in shares:
            new_tokens = min(share.new_tokens, 1 + spare) if share.request.scores_prompt else share.new_tokens
            spare -= new_tokens - 1 if share.request.scores_prompt else 0
            cut.append(Chunk(share.request, new_tokens))
        return cut

    def _cut(self, share: Chunk) -> int:
        """How many tokens of the share have blocks, which are reserved; fewer by whole blocks, down to none."""
        request, past, size = share.request, share.request.blocks.num_tokens, self._blocks.layout.block_size
        end = past + share.new_tokens
        while end > past and not self._blocks.reserve(request.blocks, end):
            end = (end - 1) // size * size
        return max(0, end - past)

    def _preempt_newest(self) -> Request:
        assert len(self.running) > 1, "a request that does not fit the pool alone was let in"
        self.preemptions += 1
        return self._requeue_newest()

    def _requeue_newest(self) -> Request:
        request = self.running.pop()
        self._blocks.release(request.blocks)
        self.waiting.appendleft(request)
        return request

    def _admit(self) -> None:
        if not self.waiting:
            return
        # Beside what a step takes and gives back, room for the running ones to grow.
        kept = self._blocks.layout.step_blocks + sum(map(self._growth, self.running))
        while self.waiting and len(self.running) < self.batch_limit:
            request = self.waiting[0]
            if not self._blocks.admit(request.blocks, request.num_tokens, kept):
                return
            kept += self._growth(request)
            insort(self.running, self.waiting.popleft(), key=lambda other: other.arrival)

    def _growth(self, request: Request) -> int:
        """Blocks for as many more tokens as a block has, or a full pool would preempt what it just let in."""
        layout = self._blocks.layout
        soon = min(request.num_tokens + layout.block_size, request.most_tokens)
        return layout.sequence_blocks(soon) - request.blocks.num_blocks

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
