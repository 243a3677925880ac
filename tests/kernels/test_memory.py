"""A step's memory is what `TorchAttentionStep` says it is, by the allocator's own record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd.profiler import profile

from kvtide_kernels.attention import SequenceSpan
from kvtide_kernels.torch_attention import TorchAttention
from kvtide_kernels.torch_decode import GATHER_TOKENS
from tests.kernels.paged import HEAD_DIM, Held, layout_of, poisoned_pool

BF16, FLOAT32, INT64 = 2, 4, 8
BLOCK_SIZE, KV_HEADS, QUERY_HEADS = 16, 3, 9


def peak_bytes(action: Callable[[], Any]) -> tuple[int, int]:
    """The most that tensors took meanwhile, temporaries of operations among them, and what was left of it."""
    with profile(profile_memory=True) as recorded:
        kept = action()
    total = highest = 0
    events = [event for event in recorded.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        total += event.nbytes()
        highest = max(highest, total)
    del kept
    return highest, total


def tile_bytes(queries: int) -> int:
    """torch's flash attention on the CPU keeps, for each thread, scores in float32 and in bfloat16, and a sum.

    It takes 32, 64 or 256 queries at a time, by 512 keys. aten/src/ATen/native/cpu/FlashAttentionKernel.cpp
    """
    split = min(queries, 256 if queries >= 768 else 64 if queries >= 192 else 32)
    return torch.get_num_threads() * split * (512 * (FLOAT32 + BF16) + (2 + HEAD_DIM) * FLOAT32)


def run(windows: list[int | None], lengths: list[tuple[int, int]]) -> tuple[int, int, int]:
    """Bytes of one layer's `run` at their peak, of what `plan` leaves, and of `plan` at its peak.

    lengths: past and new tokens of each sequence
    """
    blocks = 400
    pool = poisoned_pool(layout_of(windows, BLOCK_SIZE, KV_HEADS, torch.bfloat16), blocks, KV_HEADS, torch.bfloat16)
    pool.storage.zero_()
    attention = TorchAttention(pool, scale=1.0)
    spans = [
        SequenceSpan([Held([i % blocks for i in range(-(-(past + new) // BLOCK_SIZE))])] * len(windows), past, new)
        for past, new in lengths
    ]
    tokens = sum(new for _, new in lengths)
    query = torch.randn(tokens, QUERY_HEADS, HEAD_DIM).bfloat16()
    key = torch.randn(tokens, KV_HEADS, HEAD_DIM).bfloat16()
    attention.plan(spans).run(0, query, key, key)  # what torch sets up once is not counted
    planned_peak, planned = peak_bytes(lambda: attention.plan(spans))
    step = attention.plan(spans)
    return peak_bytes(lambda: step.run(0, query, key, key))[0], planned, planned_peak


@pytest.mark.parametrize(
    ("windows", "sequences", "past", "gathered"),
    [
        ([None], 4, 999, 4 * 1008),  # 63 blocks of 16 each: one group
        ([None], 16, 999, 4 * 1008),  # five would be 5040 tokens: four groups of four
        ([None], 64, 999, 4 * 1008),
        ([None], 3, 6000, 6016),  # one sequence that is longer than GATHER_TOKENS
        ([100], 64, 6000, 32 * 128),  # 5901 to 6000 lie in 8 blocks: 32 sequences a group
    ],
)
def test_decode(windows: list[int | None], sequences: int, past: int, gathered: int) -> None:
    group = -(-gathered // (128 if windows[0] else -(-(past + 1) // BLOCK_SIZE) * BLOCK_SIZE))
    assert gathered <= max(GATHER_TOKENS, past + BLOCK_SIZE)
    peak, planned, _ = run(windows, [(past, 1)] * sequences)
    copies = 2 * gathered * KV_HEADS * HEAD_DIM * BF16
    rows = (sequences + 2 * group) * QUERY_HEADS * HEAD_DIM * BF16 + group * QUERY_HEADS * FLOAT32
    indices = gathered // BLOCK_SIZE * KV_HEADS * INT64
    assert copies < peak <= copies + rows + indices + tile_bytes(QUERY_HEADS // KV_HEADS) + 1024
    all_gathered = sequences * gathered // group
    bias = all_gathered * BF16
    held = (all_gathered // BLOCK_SIZE + sequences) * KV_HEADS * INT64
    stale = sequences * KV_HEADS * (BLOCK_SIZE - 1) * INT64
    assert bias < planned <= bias + held + stale + 3 * sequences * INT64 + 1024


@pytest.mark.parametrize(
    ("windows", "past", "new", "attended"),
    [
        ([None], 0, 512, 512),
        ([None], 3000, 200, 3200),
        ([64], 3000, 200, 263),  # 63 tokens before the first new one
        ([64], 0, 512, 512),
    ],
)
def test_prefill(windows: list[int | None], past: int, new: int, attended: int) -> None:
    peak, planned, planned_peak = run(windows, [(past, new)])
    copies = 2 * (attended + BLOCK_SIZE) * KV_HEADS * HEAD_DIM * BF16
    rows = 2 * new * QUERY_HEADS * HEAD_DIM * BF16 + new * QUERY_HEADS * FLOAT32
    indices = (attended // BLOCK_SIZE + 1) * KV_HEADS * INT64
    assert rows < peak <= copies + rows + indices + tile_bytes(new) + 1024
    bias = 0 if past == 0 and windows == [None] else new * attended * BF16
    held = (attended // BLOCK_SIZE + 2 + new) * KV_HEADS * INT64 + 2 * new * INT64
    assert bias < planned <= bias + held + 1024
    assert planned_peak <= (bias if windows == [None] else 2 * bias) + 4 * held
