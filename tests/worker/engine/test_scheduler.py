"""The scheduler: rows for each rule, and random traffic for what must hold whatever comes."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvtide_sizing.memory.kv import KvLayout
from kvtide_worker.engine.block_manager import BlockManager
from kvtide_worker.engine.messages import SamplingParams
from kvtide_worker.engine.request import Request
from kvtide_worker.engine.scheduler import Scheduler
from tests.worker.engine.layouts import layout_of, layouts

NO_WINDOW = layout_of([None])


class Bench:
    """A scheduler, and a model that takes no time and never says the end-of-sequence token."""

    def __init__(self, *, num_blocks: int, layout: KvLayout = NO_WINDOW, batch_limit: int = 4) -> None:
        self.layout = layout
        self.blocks = BlockManager(layout, num_blocks)
        self.scheduler = Scheduler(self.blocks, max_batch_limit=batch_limit)
        self.requests: dict[str, Request] = {}
        self.finished: list[str] = []
        self._arrivals = itertools.count()

    def add(self, name: str, prompt: int, max_tokens: int = 8) -> Request:
        request = Request(name, next(self._arrivals), list(range(prompt)), SamplingParams(max_tokens=max_tokens))
        self.requests[name] = request
        self.scheduler.add(request)
        return request

    def step(self) -> dict[str, int]:
        """Run a step; how many tokens of each request it computed, in its order."""
        chunks = self.scheduler.schedule()
        for chunk in chunks:
            self.blocks.advance(chunk.request.blocks, chunk.new_tokens)
            if chunk.request.pending_tokens == 0 and chunk.request.append(0, ()):
                self.scheduler.remove(chunk.request)
                self.finished.append(chunk.request.request_id)
                del self.requests[chunk.request.request_id]
        return {chunk.request.request_id: chunk.new_tokens for chunk in chunks}

    def names(self) -> tuple[list[str], list[str]]:
        """Running and waiting requests."""
        running, waiting = self.scheduler.running, self.scheduler.waiting
        return [request.request_id for request in running], [request.request_id for request in waiting]


def test_decodes_first_then_prefills_in_chunks() -> None:
    bench = Bench(num_blocks=20)
    bench.add("a", prompt=3)
    assert bench.step() == {"a": 3}
    bench.add("b", prompt=30)
    assert bench.step() == {"a": 1, "b": 15}
    assert bench.step() == {"a": 1, "b": 15}
    assert bench.step() == {"a": 1, "b": 1}


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        ([40, 2], {"1": 2, "0": 14}),  # the short one is done at once, its share goes to the long one
        ([40, 40], {"0": 8, "1": 8}),
        ([40, 3, 40], {"1": 3, "0": 6, "2": 7}),
        ([5], {"0": 5}),
    ],
)
def test_prefill_shares_the_budget(prompts: list[int], expected: dict[str, int]) -> None:
    bench = Bench(num_blocks=40)
    for index, prompt in enumerate(prompts):
        bench.add(str(index), prompt)
    assert bench.step() == expected


@pytest.mark.parametrize(
    ("num_blocks", "running"),
    [
        (4, ["a"]),  # b needs two blocks, a holds two: none would be left for a to grow
        (5, ["a", "b"]),
    ],
)
def test_admits_with_room_to_grow(num_blocks: int, running: list[str]) -> None:
    bench = Bench(num_blocks=num_blocks)
    bench.add("a", prompt=8)
    bench.add("b", prompt=8)
    bench.step()
    assert bench.names()[0] == running


def test_a_request_that_fills_the_pool_runs_alone() -> None:
    bench = Bench(num_blocks=4)
    bench.add("a", prompt=12, max_tokens=4)
    for _ in range(4):
        bench.step()
    assert bench.finished == ["a"]


def test_nobody_overtakes_the_head_of_the_queue() -> None:
    bench = Bench(num_blocks=6)
    bench.add("a", prompt=8)
    bench.add("long", prompt=16)
    bench.add("short", prompt=1)
    bench.step()
    assert bench.names() == (["a"], ["long", "short"])


def test_preempts_the_newest_and_keeps_its_tokens() -> None:
    bench = Bench(num_blocks=5)
    bench.add("old", prompt=8, max_tokens=12)
    new = bench.add("new", prompt=7, max_tokens=12)
    steps = [bench.step() for _ in range(5)]
    # Step 2 gives old the fifth block; new wants one in step 3 (its 9th token), and goes back to the queue.
    assert bench.scheduler.preemptions == 1
    assert bench.names() == (["old"], ["new"])
    assert steps[-1] == {"old": 1}
    kept = list(new.output_token_ids)
    assert len(kept) == 2
    while bench.requests:
        bench.step()
    assert bench.finished == ["old", "new"]
    assert len(new.output_token_ids) == 12
    assert new.output_token_ids[: len(kept)] == kept


def test_a_preempted_request_recomputes_prompt_and_output() -> None:
    bench = Bench(num_blocks=20)
    request = bench.add("a", prompt=5)
    bench.add("b", prompt=5)
    bench.step()
    bench.step()
    bench.scheduler.set_batch_limit(1)
    bench.step()
    assert bench.names() == (["a"], ["b"])
    bench.scheduler.remove(request)
    assert bench.step() == {"b": 7}  # 5 of the prompt, 2 generated
    assert bench.scheduler.preemptions == 0  # a limit is no want of blocks


@pytest.mark.parametrize(("asked", "in_force"), [(0, 1), (1, 1), (3, 3), (4, 4), (9, 4)])
def test_batch_limit_stays_within_the_plan(asked: int, in_force: int) -> None:
    bench = Bench(num_blocks=40)
    for name in "abcde":
        bench.add(name, prompt=1)
    bench.step()
    bench.scheduler.set_batch_limit(asked)
    assert bench.scheduler.batch_limit == in_force
    assert len(bench.step()) == in_force


def test_counts_what_is_queued() -> None:
    bench = Bench(num_blocks=40, batch_limit=1)
    bench.add("a", prompt=20, max_tokens=5)
    bench.add("b", prompt=7, max_tokens=3)
    assert (bench.scheduler.queued_prompt_tokens, bench.scheduler.expected_output_tokens) == (27, 8)
    bench.step()  # 16 of a's 20
    assert (bench.scheduler.queued_prompt_tokens, bench.scheduler.expected_output_tokens) == (11, 8)
    bench.step()
    assert (bench.scheduler.queued_prompt_tokens, bench.scheduler.expected_output_tokens) == (7, 7)


def test_a_budget_below_the_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="a step of 3 tokens cannot run 4 sequences"):
        Bench(num_blocks=4, layout=layout_of([None], step_tokens=3))


def test_a_windowed_request_leaves_room_for_a_step() -> None:
    """Window 5 in blocks of 4: 2 blocks each, and ceil(15 / 4) for the new tokens of a step of 16."""
    layout = layout_of([5])
    bench = Bench(num_blocks=2 + 4, layout=layout)
    bench.add("a", prompt=60)
    bench.add("b", prompt=60)
    assert bench.step() == {"a": 16}
    assert bench.names() == (["a"], ["b"])
    bench = Bench(num_blocks=2 + 2 + 4, layout=layout)
    bench.add("a", prompt=60)
    bench.add("b", prompt=60)
    assert bench.step() == {"a": 8, "b": 8}


def test_a_chunk_takes_the_blocks_that_decodes_have_left() -> None:
    """Window 9 in blocks of 2, 12 blocks. Between steps the long prompt holds 4: its last 8 tokens."""
    bench = Bench(num_blocks=12, layout=layout_of([9], block_size=2, step_tokens=8))
    bench.add("long", prompt=36)
    bench.add("b", prompt=1, max_tokens=30)
    bench.add("c", prompt=1, max_tokens=30)
    # 6 are what two decodes leave of 8. From the 5th step on b and c hold 3 blocks each: 2 are left, for 4 tokens.
    assert [bench.step()["long"] for _ in range(6)] == [6, 6, 6, 6, 4, 4]
    # With their 7th token they take the 7th and 8th block. None is left for the oldest request: the newest gives its.
    assert bench.step() == {"b": 1, "long": 4}
    assert bench.names() == (["long", "b"], ["c"])
    assert bench.scheduler.preemptions == 1


def test_the_oldest_prompt_takes_blocks_from_the_newest() -> None:
    """Window 17 in blocks of 1, 47 blocks. `old` holds 16 past its window, `new` the 17 that it was let in with."""
    bench = Bench(num_blocks=47, layout=layout_of([17], block_size=1, step_tokens=8))
    bench.add("old", prompt=42)
    bench.add("b", prompt=1, max_tokens=30)
    bench.add("c", prompt=1, max_tokens=30)
    bench.step()
    bench.add("new", prompt=42)
    for _ in range(5):
        assert bench.step().keys() == {"old", "b", "c", "new"}
    # b and c take their 7th: 16 + 17 + 14 are all. The newest loses its share of this step with its blocks.
    assert bench.step() == {"b": 1, "c": 1, "old": 3}
    assert bench.names() == (["old", "b", "c"], ["new"])


class SchedulerMachine(RuleBasedStateMachine):
    """Random requests that all fit the pool alone, aborts and limits, between steps."""

    @initialize(layout=layouts, more_blocks=st.integers(0, 8))
    def start(self, layout: KvLayout, more_blocks: int) -> None:
        self.bench = Bench(num_blocks=layout.required_blocks(1, 32) + more_blocks, layout=layout)
        self.added = 0
        self.aborted = 0

    @rule(prompt=st.integers(1, 24), max_tokens=st.integers(1, 8))
    def add(self, prompt: int, max_tokens: int) -> None:
        self.bench.add(f"request-{self.added}", prompt, max_tokens)
        self.added += 1

    @precondition(lambda self: self.bench.requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.bench.requests)))
        self.bench.scheduler.remove(self.bench.requests.pop(name))
        self.aborted += 1

    @rule(batch_limit=st.integers(1, 4))
    def limit(self, batch_limit: int) -> None:
        self.bench.scheduler.set_batch_limit(batch_limit)

    @rule(steps=st.integers(1, 5))
    def steps(self, steps: int) -> None:
        for _ in range(steps):
            oldest = min(self.bench.requests.values(), key=lambda request: request.arrival, default=None)
            computed = self.bench.step()
            assert sum(computed.values()) <= self.bench.layout.step_tokens
            assert len(computed) <= self.bench.scheduler.batch_limit
            assert all(computed.values())
            # Whoever came first moves in every step: so each request does in the end.
            assert oldest is None or oldest.request_id in computed

    @invariant()
    def blocks_are_conserved_and_exclusive(self) -> None:
        scheduler, blocks = self.bench.scheduler, self.bench.blocks
        tables = [table for request in scheduler.running for table in request.blocks.tables]
        held = [block for table in tables for block in [*table.blocks, *table.recent]]
        assert len(held) == len(set(held)) == blocks.live_blocks
        assert blocks.live_blocks + blocks.cached_blocks + blocks.free_blocks == blocks.num_blocks
        assert not any(request.blocks.tables or request.blocks.num_tokens for request in scheduler.waiting)
        assert len(scheduler.running) + len(scheduler.waiting) == len(self.bench.requests)

    @invariant()
    def nobody_holds_more_than_the_layout_says(self) -> None:
        for request in self.bench.scheduler.running:
            assert request.blocks.num_blocks <= self.bench.layout.sequence_blocks(request.num_tokens)

    def teardown(self) -> None:
        # Each step gives the oldest request a token at least.
        most_steps = sum(request.num_tokens + request.sampling.max_tokens for request in self.bench.requests.values())
        for _ in range(most_steps):
            self.bench.step()
        assert not self.bench.requests
        assert len(self.bench.finished) == self.added - self.aborted
        assert self.bench.blocks.free_blocks == self.bench.blocks.num_blocks


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
