"""The scheduler: rows for each rule."""

from __future__ import annotations

import pytest

from kvtide_worker.engine.scheduler import MAX_PREEMPTIONS
from tests.worker.engine.layouts import layout_of
from tests.worker.engine.scheduling import Bench


def test_decodes_first_then_prefills_in_chunks() -> None:
    bench = Bench(num_blocks=20)
    bench.add("a", prompt=3)
    assert bench.step() == {"a": 3}
    bench.add("b", prompt=30)
    assert bench.step() == {"a": 1, "b": 12}
    assert bench.step() == {"a": 1, "b": 12}
    assert bench.step() == {"a": 1, "b": 6}


def test_decodes_sit_out_for_first_tokens_four_times_in_a_row() -> None:
    """Ten prompts of half a step come while one decodes; no two of them fit its step with the decode."""
    bench = Bench(num_blocks=80, batch_limit=12)
    bench.add("a", prompt=3, max_tokens=60)
    bench.step()
    for index in range(10):
        bench.add(str(index), prompt=8, max_tokens=1)
    pairs = [{str(index): 8, str(index + 1): 8} for index in (0, 2, 4, 6)]
    assert [bench.step() for _ in range(4)] == pairs
    assert bench.step() == {"a": 1, "8": 8, "9": 4}
    assert bench.step() == {"a": 1, "9": 4}


def test_decodes_sit_out_no_long_prompts() -> None:
    """The budget is 16 tokens; beside a decode that is 12 in whole blocks of 4. No two prompts end in a step."""
    bench = Bench(num_blocks=80)
    bench.add("a", prompt=3, max_tokens=60)
    bench.step()
    for name in ("long", "longer"):
        bench.add(name, prompt=24)
    assert [bench.step() for _ in range(2)] == [{"a": 1, "long": 12}] * 2
    assert bench.step() == {"a": 1, "long": 1, "longer": 12}


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        ([40, 2], {"1": 2, "0": 12}),  # the short one is done at once, the rest goes to the long one
        ([40, 40], {"0": 16}),  # equal ones one after the other
        ([40, 3, 40], {"1": 3, "0": 12}),
        ([40, 3, 20], {"1": 3, "0": 4, "2": 8}),  # the oldest moves in every step, by a block of 4 at least
        ([40, 40, 10, 40], {"0": 4, "2": 10}),
        ([40, 40, 40, 12, 40], {"0": 4, "3": 12}),
        ([40, 40, 40, 4, 40], {"3": 4, "0": 12}),
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
    assert bench.step() == {"a": 16}
    assert bench.names() == (["a", "b"], [])


def test_a_chunk_takes_the_blocks_that_decodes_have_left() -> None:
    """Window 9 in blocks of 2, 12 blocks. Between steps the long prompt holds 4: its last 8 tokens."""
    bench = Bench(num_blocks=12, layout=layout_of([9], block_size=2, step_tokens=8))
    bench.add("long", prompt=44)
    bench.add("b", prompt=1, max_tokens=30)
    bench.add("c", prompt=1, max_tokens=30)
    # 6 are what two decodes leave of 8. From the 5th step on b and c hold 3 blocks each: 2 are left, for 4 tokens.
    assert [bench.step()["long"] for _ in range(6)] == [6, 6, 6, 6, 4, 4]
    # With their 7th token they take the 7th and 8th block. None is left for the oldest request: the newest gives its.
    assert bench.step() == {"b": 1, "long": 6}
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
    # A step takes blocks before it gives back those past the window: old gets what b and c have left of 14.
    assert [bench.step()["old"] for _ in range(5)] == [6, 6, 6, 4, 2]
    # b and c take their 7th: 16 + 17 + 14 are all. The newest loses its blocks.
    assert bench.step() == {"b": 1, "c": 1, "old": 6}
    assert bench.names() == (["old", "b", "c"], ["new"])
