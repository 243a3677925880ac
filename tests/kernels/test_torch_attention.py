"""Paged attention against torch's attention over contiguous K and V, with the rest of the pool poisoned."""

from __future__ import annotations

import pytest
import torch

from kvtide_kernels.attention import SequenceSpan
from kvtide_kernels.pool import KVPool
from kvtide_kernels.torch_attention import TorchAttention

HEAD_DIM = 16
LAYERS = 2
NUM_BLOCKS = 40

# What a result may differ by: float32 sums in another order; bfloat16 rounds results of size ~1 to 8 bits.
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2e-2}


def poisoned_pool(block_size: int, kv_heads: int, dtype: torch.dtype) -> KVPool:
    pool = KVPool.allocate(
        num_layers=LAYERS,
        num_blocks=NUM_BLOCKS,
        kv_heads=kv_heads,
        block_size=block_size,
        head_dim=HEAD_DIM,
        dtype=dtype,
        device=torch.device("cpu"),
    )
    pool.storage.fill_(float("nan"))
    return pool


def oracle(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """The last len(query) tokens of a sequence attend to all of it, in float32. [tokens, heads, head_dim]."""
    past = key.shape[0] - query.shape[0]
    mask = torch.ones(query.shape[0], key.shape[0], dtype=torch.bool).tril(past)
    q, k, v = (side.float().transpose(0, 1)[None] for side in (query, key, value))
    attended = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    return attended[0].transpose(0, 1)


def random_tables(lengths: list[int], block_size: int) -> list[list[int]]:
    """Block tables of exactly the blocks that are needed, in an order that nothing may rely on."""
    free = torch.randperm(NUM_BLOCKS).tolist()
    return [[free.pop() for _ in range(-(-length // block_size))] for length in lengths]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("query_heads", "kv_heads"), [(4, 4), (9, 3), (8, 1)], ids=["MHA", "GQA", "MQA"])
@pytest.mark.parametrize(
    ("block_size", "steps"),
    [
        # Each row: per sequence, how many new tokens each step brings. 0 leaves it out of that step.
        (
            16,
            [[16, 1, 1], [15, 1, 1], [17, 1, 1], [1, 1, 1]],
        ),  # around a block border, all decode after a prefill
        (16, [[5, 40, 1], [0, 3, 16], [64, 1, 1]]),  # chunks over borders next to decodes
        (32, [[31, 1, 1], [32, 32, 1], [33, 1, 31]]),
        (64, [[1, 1, 1], [200, 1, 1], [0, 64, 64]]),  # very different lengths in one decode
    ],
    ids=["borders", "chunks", "mixed", "uneven"],
)
def test_equals_contiguous_attention(
    block_size: int, steps: list[list[int]], query_heads: int, kv_heads: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(3)
    pool = poisoned_pool(block_size, kv_heads, dtype)
    attention = TorchAttention(pool)
    tables = random_tables([sum(new) for new in steps], block_size)
    history = [[(torch.empty(0, kv_heads, HEAD_DIM, dtype=dtype),) * 2 for _ in steps] for _ in range(LAYERS)]
    past = [0] * len(steps)
    for news in zip(*steps, strict=True):
        running = [i for i, new in enumerate(news) if new]
        step = attention.plan([SequenceSpan(tables[i], past[i], news[i]) for i in running])
        total = sum(news)
        for layer in range(LAYERS):
            query = torch.randn(total, query_heads, HEAD_DIM).to(dtype)
            key, value = torch.randn(2, total, kv_heads, HEAD_DIM).to(dtype)
            out = step.run(layer, query, key, value)
            assert out.shape == query.shape
            start = 0
            for i in running:
                end = start + news[i]
                old_key, old_value = history[layer][i]
                history[layer][i] = (
                    torch.cat([old_key, key[start:end]]),
                    torch.cat([old_value, value[start:end]]),
                )
                expected = oracle(query[start:end], *history[layer][i])
                torch.testing.assert_close(
                    out[start:end].float(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype]
                )
                start = end
        for i in running:
            past[i] += news[i]


def test_writes_only_its_own_slots() -> None:
    """A step that brings three tokens changes three rows per head and layer, and nothing else."""
    pool = poisoned_pool(16, 3, torch.float32)
    step = TorchAttention(pool).plan([SequenceSpan([5, 9], 15, 2), SequenceSpan([2], 0, 1)])
    key, value = torch.zeros(3, 3, HEAD_DIM), torch.ones(3, 3, HEAD_DIM)
    step.run(1, torch.zeros(3, 6, HEAD_DIM), key, value)
    written = {tuple(place) for place in (~pool.storage.isnan()).any(-1).nonzero().tolist()}
    # (layer, keys or values, block, head, slot): token 15 is the last of block 5, 16 the first of block 9.
    assert written == {
        (1, side, block, head, slot)
        for side in (0, 1)
        for head in range(3)
        for block, slot in ((5, 15), (9, 0), (2, 0))
    }
    assert pool.values[1][9, :, 0].eq(1).all()


@pytest.mark.parametrize(
    ("span", "message"),
    [
        (SequenceSpan([1, 2], 31, 2), "33 tokens do not fit the 2 blocks of 16"),
        (SequenceSpan([1], 4, 0), "needs new tokens"),
    ],
)
def test_refuses_spans_that_cannot_run(span: SequenceSpan, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TorchAttention(poisoned_pool(16, 1, torch.float32)).plan([span])


def test_pool_bytes() -> None:
    """SmolLM2-135M: 2 sides x 30 layers x 3 KV heads x 64 x 2 bytes = 23,040 bytes per token."""
    pool = KVPool.allocate(
        num_layers=30,
        num_blocks=2,
        kv_heads=3,
        block_size=64,
        head_dim=64,
        dtype=torch.bfloat16,
        device=torch.device("cpu"),
    )
    assert pool.nbytes == 23_040 * 64 * 2
