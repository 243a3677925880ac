"""A scheduler under test, with a model that takes no time."""

from __future__ import annotations

import itertools

from kvtide_sizing.memory.kv import KvLayout
from kvtide_worker.engine.block_manager import BlockManager
from kvtide_worker.engine.messages import SamplingParams
from kvtide_worker.engine.prefix_cache import PrefixCache
from kvtide_worker.engine.request import Request
from kvtide_worker.engine.scheduler import Scheduler
from tests.worker.engine.layouts import layout_of

NO_WINDOW = layout_of([None])


class Bench:
    """A scheduler, and a model that takes no time and never says the end-of-sequence token.

    Chunks end at blocks' ends. cached: prompts are found again; all of them begin alike
    """

    def __init__(
        self, *, num_blocks: int, layout: KvLayout = NO_WINDOW, batch_limit: int = 4, cached: bool = False
    ) -> None:
        self.layout = layout
        self.prefix = PrefixCache(layout, aligned_tokens=layout.block_size)
        self.cached = cached
        self.blocks = BlockManager(layout, num_blocks, self.prefix)
        self.scheduler = Scheduler(self.blocks, max_batch_limit=batch_limit)
        self.requests: dict[str, Request] = {}
        self.finished: list[str] = []
        self.first: str | None = None  # of those that ran when the last step began
        self._arrivals = itertools.count()

    def add(
        self, name: str, prompt: int, max_tokens: int = 8, *, priority: int = 0, leader: Request | None = None
    ) -> Request:
        sampling = SamplingParams(max_tokens=max_tokens)
        request = Request(name, next(self._arrivals), list(range(prompt)), sampling, priority=priority)
        if self.cached:
            request.blocks.chain = self.prefix.chain("", request.token_ids)
        self.requests[name] = request
        self.scheduler.add(request, leader)
        return request

    def step(self) -> dict[str, int]:
        """Run a step; how many tokens of each request it computed, in its order."""
        chunks = self.scheduler.schedule()
        self.first = self.scheduler.running[0].request_id if self.scheduler.running else None
        for chunk in chunks:
            self.blocks.advance(chunk.request.blocks, chunk.new_tokens)
            if chunk.request.pending_tokens == 0:
                for request in (chunk.request, *self.scheduler.fork(chunk.request)):
                    if request.append(0, ()):
                        self.end(request)
        return {chunk.request.request_id: chunk.new_tokens for chunk in chunks}

    def end(self, request: Request) -> None:
        self.scheduler.remove(request)
        self.finished.append(request.request_id)
        del self.requests[request.request_id]

    def names(self) -> tuple[list[str], list[str]]:
        """Running and waiting requests."""
        running, waiting = self.scheduler.running, self.scheduler.waiting
        return [request.request_id for request in running], [request.request_id for request in waiting]
