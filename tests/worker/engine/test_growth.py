"""What an admission leaves for those that run, and that a full pool is full."""

from __future__ import annotations

import random
import statistics

import pytest

from kvtide_sizing.memory.kv import KvLayout, TableLayout
from kvtide_worker.engine.block_manager import BlockManager
from kvtide_worker.engine.growth import OutputLength, shortage
from kvtide_worker.engine.messages import SamplingParams
from kvtide_worker.engine.request import Request
from kvtide_worker.engine.scheduler import Scheduler
from tests.worker.engine.layouts import layout_of

BLOCK = 4  # of layout_of


def running(prompt: int, left: int, *, found: int = 0, layout: KvLayout | None = None) -> Request:
    """A request that has computed its prompt and may generate so many tokens; found of it in the prefix cache."""
    layout = layout or layout_of([None])
    request = Request("", 0, [0] * prompt, SamplingParams(max_tokens=left), cached_tokens=found)
    assert BlockManager(layout, 100).admit(request.blocks, prompt, 0)
    return request


@pytest.mark.parametrize(
    ("requests", "steps", "blocks"),
    [
        ([], 4, 0),
        ([running(8, 9)], 0, 0),
        ([running(8, 9)], 1, 1),  # two full blocks: the next token asks for a third
        ([running(7, 9)], 1, 0),  # one slot is left
        ([running(7, 9)], 2, 1),
        ([running(5, 4)], 4, 0),  # three slots for all but the last token
        ([running(8, 9), running(7, 9), running(6, 9)], 4, 3),
        # What ends after a step has three blocks for those that grow after the second and the third one.
        ([running(9, 1), running(7, 9), running(6, 9)], 4, 0),
        ([running(9, 2), running(8, 9), running(7, 9)], 4, 1),  # the first one grows before
        ([running(9, 4), running(7, 9), running(6, 9)], 4, 2),  # it ends when it is too late
        # Eight of nine tokens were found, and others may hold them too: the ninth's block is its alone.
        ([running(9, 1, found=8), running(7, 9), running(6, 9)], 4, 1),
    ],
)
def test_shortage(requests: list[Request], steps: int, blocks: int) -> None:
    assert shortage(requests, layout_of([None]), steps) == blocks


def test_each_table_grows() -> None:
    layout = layout_of([None, 100])
    assert shortage([running(8, 9, layout=layout)], layout, 1) == 2


def test_an_end_is_expected_by_the_lengths_of_those_that_ended() -> None:
    lengths = OutputLength()
    assert lengths.steps_to_an_end(8, most=64) == 64  # nothing is known yet
    lengths.ended(80)
    assert lengths.steps_to_an_end(8, most=64) == 30  # one in 80 / 8 steps, three times as many for one that is late
    assert lengths.steps_to_an_end(2, most=64) == 64
    assert lengths.steps_to_an_end(1000, most=64) == 1
    assert lengths.steps_to_an_end(0, most=64) == 64
    for _ in range(200):
        lengths.ended(16)
    assert lengths.steps_to_an_end(8, most=64) == 6  # of 16 tokens, as all of late


@pytest.mark.parametrize("told", [True, False], ids=["max_tokens", "eos"])
@pytest.mark.parametrize(("block_size", "num_blocks"), [(16, 512), (64, 128)])
def test_a_full_pool_is_full(block_size: int, num_blocks: int, told: bool) -> None:
    """Mixed lengths while others wait: nearly all of it is in use, and few lose their blocks.

    told: whether max_tokens says when an answer ends, or the model alone does
    """
    rng = random.Random(7)
    blocks = BlockManager(KvLayout(block_size, 1, (TableLayout((0,), None),), 2048), num_blocks)
    scheduler = Scheduler(blocks, max_batch_limit=128)
    lengths = [(min(512, round(rng.lognormvariate(4.6, 0.8))), round(rng.lognormvariate(4.3, 0.6))) for _ in range(300)]
    answers = {}
    for number, (prompt, answer) in enumerate(lengths):
        sampling = SamplingParams(max_tokens=answer if told else 1024)
        request = Request(str(number), number, [0] * prompt, sampling)
        answers[request] = answer
        scheduler.add(request)
    used = []
    while answers:
        for chunk in scheduler.schedule():
            request = chunk.request
            blocks.advance(request.blocks, chunk.new_tokens)
            if request.pending_tokens == 0:
                request.append(0, ())
                if len(request.output_token_ids) == answers[request]:
                    scheduler.remove(request)
                    del answers[request]
        if scheduler.waiting:
            used.append(blocks.live_blocks / num_blocks)
    assert statistics.mean(used) > (0.96 if told else 0.94)
    assert scheduler.preemptions < len(lengths) / 5
