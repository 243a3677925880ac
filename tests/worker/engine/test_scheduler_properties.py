"""The scheduler: random traffic for what must hold whatever comes."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvtide_sizing.memory.kv import KvLayout
from kvtide_worker.engine.scheduler import MAX_PASSED, MAX_PREEMPTIONS, MAX_SAT_OUT
from tests.worker.engine.layouts import layouts
from tests.worker.engine.scheduling import Bench


class SchedulerMachine(RuleBasedStateMachine):
    """Random requests that all fit the pool alone, of any priority and with choices, aborts and limits, between steps.

    All prompts begin alike, so that everything is shared that can be.
    """

    @initialize(layout=layouts, more_blocks=st.integers(0, 8), cached=st.booleans())
    def start(self, layout: KvLayout, more_blocks: int, cached: bool) -> None:
        self.bench = Bench(num_blocks=layout.required_blocks(1, 32) + more_blocks, layout=layout, cached=cached)
        self.added = 0
        self.aborted = 0
        self.sat_out = 0

    @rule(
        prompt=st.integers(1, 24), max_tokens=st.integers(1, 8), priority=st.integers(-1, 1), choices=st.integers(1, 3)
    )
    def add(self, prompt: int, max_tokens: int, priority: int, choices: int) -> None:
        leader = None
        for _ in range(choices):
            request = self.bench.add(f"request-{self.added}", prompt, max_tokens, priority=priority, leader=leader)
            leader = leader or request
            self.added += 1

    @precondition(lambda self: self.bench.requests)
    @rule(data=st.data(), kept=st.booleans())
    def abort(self, data: st.DataObject, kept: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.bench.requests)))
        self.bench.scheduler.remove(self.bench.requests.pop(name), kept=kept)
        self.aborted += 1

    @rule(batch_limit=st.integers(1, 4))
    def limit(self, batch_limit: int) -> None:
        self.bench.scheduler.set_batch_limit(batch_limit)

    @rule(steps=st.integers(1, 5))
    def steps(self, steps: int) -> None:
        for _ in range(steps):
            some = bool(self.bench.requests)
            computed = self.bench.step()
            self.bench.blocks.take_copies()
            assert sum(computed.values()) <= self.bench.layout.step_tokens
            assert len(computed) <= self.bench.scheduler.batch_limit
            assert all(computed.values())
            # Something is computed in every step, and of the first one in one of five: so each request ends.
            assert bool(computed) == some
            self.sat_out = 0 if self.bench.first in computed else self.sat_out + some
            assert self.sat_out <= MAX_SAT_OUT

    @invariant()
    def blocks_are_conserved(self) -> None:
        scheduler, blocks = self.bench.scheduler, self.bench.blocks
        tables = [table for request in scheduler.running for table in request.blocks.tables]
        recent = [block for table in tables for block in table.recent]
        held = {block for table in tables for block in table.blocks}
        assert len(recent) == len(set(recent))
        assert not held & set(recent)
        assert len(held) + len(recent) == blocks.live_blocks
        assert blocks.live_blocks + blocks.cached_blocks + blocks.free_blocks == blocks.num_blocks
        assert not any(request.blocks.tables or request.blocks.num_tokens for request in scheduler.waiting)
        assert len(scheduler.running) + scheduler.num_waiting == len(self.bench.requests)

    @invariant()
    def queues_are_in_order(self) -> None:
        scheduler = self.bench.scheduler
        assert scheduler.running == sorted(scheduler.running, key=lambda request: request.rank)
        assert scheduler.waiting == sorted(scheduler.waiting, key=lambda request: request.place)

    @invariant()
    def nobody_holds_more_than_the_layout_says(self) -> None:
        for request in self.bench.scheduler.running:
            assert request.blocks.num_blocks <= self.bench.layout.sequence_blocks(request.num_tokens)

    @invariant()
    def nobody_is_passed_too_often(self) -> None:
        assert all(request.passed <= MAX_PASSED for request in self.bench.scheduler.waiting)

    def teardown(self) -> None:
        # Of so many steps one gives the first request a token at least. Whoever loses its blocks computes its tokens
        # again, as the first one does as often as it may be put behind one of a higher priority.
        tokens = sum(request.num_tokens + request.sampling.max_tokens for request in self.bench.requests.values())
        most_steps = (1 + MAX_SAT_OUT) * (1 + MAX_PREEMPTIONS) * tokens
        for _ in range(most_steps):
            self.bench.step()
        assert not self.bench.requests
        assert len(self.bench.finished) == self.added - self.aborted
        assert self.bench.blocks.available_blocks == self.bench.blocks.num_blocks
        assert self.bench.blocks.live_tokens == 0


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
