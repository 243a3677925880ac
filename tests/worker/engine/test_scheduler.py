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
from kvtide_worker.engine.prefix_cache import PrefixCache
from kvtide_worker.engine.request import Request
from kvtide_worker.engine.scheduler import MAX_PASSED, MAX_PREEMPTIONS, Scheduler
from tests.worker.engine.layouts import layout_of, layouts

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
        self.first: str | None = None  # of those that ran in the last step
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


def test_decodes_first_then_prefills_in_chunks() -> None:
    bench = Bench(num_blocks=20)
    bench.add("a", prompt=3)
    assert bench.step() == {"a": 3}
    bench.add("b", prompt=30)
    assert bench.step() == {"a": 1, "b": 12}
    assert bench.step() == {"a": 1, "b": 12}
    assert bench.step() == {"a": 1, "b": 6}


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        ([40, 2], {"1": 2, "0": 12}),  # the short one is done at once, its share goes to the long one
        ([40, 40], {"0": 8, "1": 8}),
        ([40, 3, 40], {"1": 3, "0": 8, "2": 4}),  # 6 and 7, in whole blocks of 4; what these leave goes to the first
        ([40, 3, 20], {"1": 3, "0": 4, "2": 8}),  # nearer to its end
        ([40, 40, 40], {"0": 8, "1": 4, "2": 4}),
        ([40, 40, 10, 40], {"0": 4, "1": 4, "2": 4, "3": 4}),
        ([40, 40, 40, 40, 40], {"0": 16}),  # a share is no block: one after the other
        ([40, 40, 40, 12, 40], {"0": 4, "3": 12}),  # the first moves in every step
        ([40, 40, 40, 4, 40], {"3": 4, "0": 12}),  # a short one waits for no long one
        ([5], {"0": 5}),
        ([17], {"0": 12}),  # 16 would leave one token, which alone is a decode
    ],
)
def test_prefill_shares_the_budget(prompts: list[int], expected: dict[str, int]) -> None:
    bench = Bench(num_blocks=80, batch_limit=5)
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


def test_a_request_that_waits_for_memory_is_passed_but_not_for_ever() -> None:
    """`long` needs 8 blocks of 12, of which `stays` has 4 and more later: those that need 1 may pass it, 16 times."""
    bench = Bench(num_blocks=12)
    stays = bench.add("stays", prompt=13, max_tokens=60)
    bench.step()
    long = bench.add("long", prompt=32)
    for number in range(40):
        bench.add(f"short-{number}", prompt=1, max_tokens=1)
    # three of them run beside the other one in each step
    for passed in (3, 6, 9, 12, 15, 16, 16, 16):
        bench.step()
        assert len(bench.finished) == long.passed == passed
    assert long in bench.scheduler.waiting
    bench.end(stays)
    bench.step()
    assert long in bench.scheduler.running
    assert long.passed == 0


def test_places_in_the_batch_are_not_passed_over() -> None:
    bench = Bench(num_blocks=40, batch_limit=1)
    for name in "abc":
        bench.add(name, prompt=4)
    bench.step()
    assert bench.names() == (["a"], ["b", "c"])


def test_priorities_come_before_arrival() -> None:
    bench = Bench(num_blocks=40, batch_limit=1)
    bench.add("runs", prompt=4, priority=-1, max_tokens=2)
    bench.step()
    bench.add("usual", prompt=4)
    bench.add("low", prompt=4, priority=5)
    bench.add("high", prompt=4, priority=-1)
    assert bench.names()[1] == ["high", "usual", "low"]
    while bench.requests:
        bench.step()
    assert bench.finished == ["runs", "high", "usual", "low"]


@pytest.mark.parametrize(("num_blocks", "batch_limit"), [(40, 1), (4, 4)])
def test_a_higher_priority_takes_the_place_or_the_blocks_of_a_lower_one(num_blocks: int, batch_limit: int) -> None:
    bench = Bench(num_blocks=num_blocks, batch_limit=batch_limit)
    low = bench.add("low", prompt=8, priority=1)
    bench.step()
    bench.add("same", prompt=8, priority=1)
    bench.step()
    assert bench.names() == (["low"], ["same"])
    bench.add("high", prompt=8)
    bench.step()
    # who has run waits before those of its priority that have not
    assert bench.names() == (["high"], ["low", "same"])
    assert (low.preemptions, bench.scheduler.preemptions) == (1, 1)


def test_who_was_preempted_three_times_keeps_its_blocks_while_others_have_some() -> None:
    bench = Bench(num_blocks=40)
    first, second, third = (bench.add(name, prompt=4, max_tokens=30) for name in "abc")
    bench.step()
    third.preemptions = MAX_PREEMPTIONS
    assert bench.scheduler._preempt() is second
    assert bench.scheduler._preempt() is third  # nobody else is left, and the first never loses its blocks
    assert bench.scheduler.running == [first]


def test_preemptions_are_told(caplog: pytest.LogCaptureFixture) -> None:
    """Of 5 blocks old has 3 and new 2 when new wants another one for its 9th token."""
    bench = Bench(num_blocks=5)
    bench.add("old", prompt=8, max_tokens=12)
    bench.add("new", prompt=7, max_tokens=12)
    for _ in range(3):
        bench.step()
    assert caplog.messages == [
        "request new was preempted: 8 tokens to compute again, less those found cached; live KV blocks 100.0 % before, "
        "60.0 % after; 1 of its preemptions, 1 of all"
    ]


def test_what_is_found_is_not_computed_and_takes_no_blocks() -> None:
    """Prompts of 0, 1, 2, …: of 13 tokens in blocks of 4 the second finds 8, for 2 at least are computed."""
    bench = Bench(num_blocks=7, cached=True)
    bench.add("first", prompt=13, max_tokens=4)
    assert bench.step() == {"first": 13}
    second = bench.add("second", prompt=13, max_tokens=4)
    # 7 of 7 blocks: 4 of the first; 4 of the second, of which 2 or 3 are the first's, and one more for the first's next
    assert bench.step() == {"first": 1, "second": 5}
    assert (second.cached_tokens, bench.scheduler.prefix_queries, bench.scheduler.prefix_hits) == (8, 26, 8)
    assert bench.blocks.live_blocks == 4 + 2


def test_a_preempted_request_finds_its_own_blocks() -> None:
    bench = Bench(num_blocks=20, cached=True)
    bench.add("a", prompt=5)
    bench.add("b", prompt=14)
    bench.step()
    bench.step()
    bench.step()
    bench.scheduler.set_batch_limit(1)
    bench.step()
    assert bench.blocks.cached_blocks > 0
    bench.scheduler.set_batch_limit(2)
    # b has 14 + 2 tokens; 12 of the 15 that were computed lie in full blocks.
    assert bench.step()["b"] == 4


def test_a_prompts_choices_share_what_the_first_computes() -> None:
    bench = Bench(num_blocks=20)
    leader = bench.add("0", prompt=6, max_tokens=3)
    for name in "123":
        bench.add(name, prompt=6, max_tokens=3, leader=leader)
    assert bench.scheduler.num_waiting == 4
    assert bench.scheduler.queued_prompt_tokens == 6
    assert bench.step() == {"0": 6}
    assert bench.names() == (["0", "1", "2", "3"], [])
    assert bench.blocks.live_blocks == 2
    assert bench.step() == {"0": 1, "1": 1, "2": 1, "3": 1}
    # the full block is shared, the other one is each one's own by now
    assert bench.blocks.live_blocks == 1 + 4
    bench.step()
    assert sorted(bench.finished) == ["0", "1", "2", "3"]
    assert bench.blocks.free_blocks == 20


def test_choices_without_a_place_wait_for_one() -> None:
    bench = Bench(num_blocks=20, batch_limit=2)
    leader = bench.add("0", prompt=6, max_tokens=2)
    for name in "12":
        bench.add(name, prompt=6, max_tokens=2, leader=leader)
    bench.step()
    assert bench.names() == (["0", "1"], ["2"])
    while bench.requests:
        bench.step()
    assert sorted(bench.finished) == ["0", "1", "2"]
    assert bench.blocks.free_blocks == 20


def test_when_the_first_choice_is_gone_the_next_one_computes_the_prompt() -> None:
    bench = Bench(num_blocks=20)
    leader = bench.add("0", prompt=30, max_tokens=3)
    followers = [bench.add(name, prompt=30, max_tokens=3, leader=leader) for name in "123"]
    bench.step()
    bench.end(leader)
    assert bench.names() == ([], ["1"])
    assert bench.scheduler.num_waiting == 3
    bench.end(followers[1])
    while bench.requests:
        bench.step()
    assert sorted(bench.finished) == ["0", "1", "2", "3"]
    assert (bench.blocks.free_blocks, bench.scheduler.num_waiting) == (20, 0)


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
    assert bench.scheduler.recomputed_tokens == 8  # 7 of the prompt, 1 of the 2 generated: the last was not computed


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
    assert bench.scheduler.recomputed_tokens == 6  # all but the last generated one, which never was


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
    """Random requests that all fit the pool alone, of any priority and with choices, aborts and limits, between steps.

    All prompts begin alike, so that everything is shared that can be.
    """

    @initialize(layout=layouts, more_blocks=st.integers(0, 8), cached=st.booleans())
    def start(self, layout: KvLayout, more_blocks: int, cached: bool) -> None:
        self.bench = Bench(num_blocks=layout.required_blocks(1, 32) + more_blocks, layout=layout, cached=cached)
        self.added = 0
        self.aborted = 0

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
            # The first one moves in every step: so each request does in the end.
            assert (self.bench.first in computed) == some

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
        # Each step gives the first request a token at least. Whoever loses its blocks computes its tokens again, as the
        # first one does as often as it may be put behind one of a higher priority.
        tokens = sum(request.num_tokens + request.sampling.max_tokens for request in self.bench.requests.values())
        most_steps = (1 + MAX_PREEMPTIONS) * tokens
        for _ in range(most_steps):
            self.bench.step()
        assert not self.bench.requests
        assert len(self.bench.finished) == self.added - self.aborted
        assert self.bench.blocks.available_blocks == self.bench.blocks.num_blocks
        assert self.bench.blocks.live_tokens == 0


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
