"""Paged attention against torch's attention over contiguous K and V, with the rest of the pool poisoned."""

from __future__ import annotations

import pytest
import torch

from kvtide_kernels.attention import SequenceSpan
from kvtide_kernels.pool import KVPool
from kvtide_kernels.torch_attention import TorchAttention
from kvtide_sizing.formats import INT8, LayerFormat
from kvtide_sizing.memory.kv import KvLayout, TableLayout
from tests.kernels.paged import HEAD_DIM, TOLERANCE, Held, layout_of, oracle, poisoned_pool

NUM_BLOCKS = 160
SCALE = 0.3

# Each row: per sequence, how many new tokens each step brings. 0 leaves it out of that step.
BORDERS = [[16, 1, 1], [15, 1, 1], [17, 1, 1], [1, 1, 1]]  # around a block border, all decode after a prefill
CHUNKS = [[5, 40, 1], [0, 3, 16], [64, 1, 1]]  # chunks over borders next to decodes
MIXED = [[31, 1, 1], [32, 32, 1], [33, 1, 31]]
UNEVEN = [[1, 1, 1], [200, 1, 1], [0, 64, 64]]  # very different lengths in one decode


class Sequence:
    """One sequence with its own blocks, which it drops behind its windows and takes from `free` in no order."""

    def __init__(self, attention: Paged, new_tokens: list[int]) -> None:
        self.new_tokens = new_tokens
        self.past = 0
        self.tables = [Held([]) for _ in attention.layout.tables]
        none = torch.empty(0, attention.kv_heads, HEAD_DIM, dtype=attention.dtype)
        self.history = [(none, none) for _ in range(attention.layers)]


class Paged:
    """A pool whose free blocks are NaN, and the sequences in it."""

    def __init__(
        self, windows: list[int | None], block_size: int, kv_heads: int, dtype: torch.dtype, *, slots: int = 1
    ) -> None:
        self.layout = layout_of(windows, block_size, kv_heads, dtype, slots=slots)
        self.kv_heads, self.dtype, self.layers = kv_heads, dtype, len(windows) * slots
        self.pool = poisoned_pool(self.layout, NUM_BLOCKS, kv_heads, dtype)
        self.attention = TorchAttention(self.pool, scale=SCALE)
        self.free = torch.randperm(NUM_BLOCKS).tolist()

    def span(self, sequence: Sequence, new: int) -> SequenceSpan:
        """Blocks for the new tokens, of every table."""
        for table in sequence.tables:
            while (table.first + len(table.blocks)) * self.layout.block_size < sequence.past + new:
                table.blocks.append(self.free.pop())
        return SequenceSpan(sequence.tables, sequence.past, new)

    def drop(self, sequence: Sequence) -> None:
        """Whatever the next token does not see is poisoned, as if another sequence had left a NaN there."""
        for table, of_layers in zip(sequence.tables, self.layout.tables, strict=True):
            seen_from = 0 if of_layers.window is None else max(0, sequence.past + 1 - of_layers.window)
            while (table.first + 1) * self.layout.block_size <= seen_from:
                block = table.blocks.pop(0)
                table.first += 1
                for layer in range(self.layers):
                    self.attention.keys[layer][block] = self.attention.values[layer][block] = float("nan")
                self.free.insert(0, block)

    def check(self, steps: list[list[int]], query_heads: int) -> None:
        """Run the steps and compare every layer's every result."""
        sequences = [Sequence(self, new_tokens) for new_tokens in steps]
        windows = {layer: table.window for table in self.layout.tables for layer in table.layers}
        for number in range(len(steps[0])):
            running = [one for one in sequences if one.new_tokens[number]]
            news = [one.new_tokens[number] for one in running]
            step = self.attention.plan([self.span(one, new) for one, new in zip(running, news, strict=True)])
            for layer in range(self.layers):
                query = torch.randn(sum(news), query_heads, HEAD_DIM).to(self.dtype)
                key, value = torch.randn(2, sum(news), self.kv_heads, HEAD_DIM).to(self.dtype)
                out = step.run(layer, query, key, value)
                assert out.shape == query.shape
                parts = zip(running, *(side.split(news) for side in (query, key, value, out)), strict=True)
                for one, own_query, own_key, own_value, own_out in parts:
                    past_key, past_value = one.history[layer]
                    one.history[layer] = torch.cat([past_key, own_key]), torch.cat([past_value, own_value])
                    expected = oracle(own_query, *one.history[layer], window=windows[layer], scale=SCALE)
                    torch.testing.assert_close(
                        own_out.float(), expected, atol=TOLERANCE[self.dtype], rtol=TOLERANCE[self.dtype]
                    )
            for one, new in zip(running, news, strict=True):
                one.past += new
                self.drop(one)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("query_heads", "kv_heads"), [(4, 4), (9, 3), (8, 1)], ids=["MHA", "GQA", "MQA"])
@pytest.mark.parametrize(
    ("block_size", "steps"),
    [(16, BORDERS), (16, CHUNKS), (32, MIXED), (64, UNEVEN)],
    ids=["borders", "chunks", "mixed", "uneven"],
)
def test_equals_contiguous_attention(
    block_size: int, steps: list[list[int]], query_heads: int, kv_heads: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(3)
    Paged([None], block_size, kv_heads, dtype, slots=2).check(steps, query_heads)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("steps", [BORDERS, CHUNKS, MIXED, UNEVEN], ids=["borders", "chunks", "mixed", "uneven"])
@pytest.mark.parametrize(
    "windows",
    [[1], [15], [16], [17], [33], [1000], [None, 16], [8, None, 40, 8]],
    ids=str,  # 16 is the block, 1000 longer than any sequence here
)
def test_windows_equal_masked_attention(windows: list[int | None], steps: list[list[int]], dtype: torch.dtype) -> None:
    torch.manual_seed(4)
    Paged(windows, 16, 2, dtype, slots=2).check(steps, query_heads=4)


@pytest.mark.parametrize("window", [None, 1, 10, 16, 50])
def test_prefill_in_chunks_of_every_size(window: int | None) -> None:
    """A prompt of 75 tokens, then three decodes: the window begins, and a chunk ends, at every place in a block."""
    for chunk in (1, 2, 7, 15, 16, 17, 40, 75):
        torch.manual_seed(chunk)
        chunks = [min(chunk, 75 - start) for start in range(0, 75, chunk)]
        Paged([window, None], 16, 2, torch.float32).check([[*chunks, 1, 1, 1]], query_heads=6)


def test_a_sequence_has_the_same_bits_alone_and_in_a_batch() -> None:
    """70 sequences of up to 300 tokens are more than one group takes; each result is the one that it has alone."""
    torch.manual_seed(6)
    paged = Paged([None, 40], 16, 2, torch.bfloat16)
    paged.pool.storage.view(torch.bfloat16).normal_()
    lengths = torch.randint(1, 300, (70,)).tolist()
    tables = [[Held(torch.randint(NUM_BLOCKS, (19,)).tolist()) for _ in range(2)] for _ in lengths]
    spans = [SequenceSpan(held, length - 1, 1) for held, length in zip(tables, lengths, strict=True)]
    query = torch.randn(70, 4, HEAD_DIM).bfloat16()
    for layer in (0, 1):
        together = paged.attention.plan(spans).run(layer, query, *stored(paged, spans, layer))
        for index, span in enumerate(spans):
            alone = paged.attention.plan([span]).run(layer, query[index : index + 1], *stored(paged, [span], layer))
            assert torch.equal(alone[0], together[index])


def stored(paged: Paged, spans: list[SequenceSpan], layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The keys and values that are in the pool already, so that writing them changes nothing."""
    places = [(span.tables[layer].blocks[span.past_tokens // 16], span.past_tokens % 16) for span in spans]
    keys, values = paged.attention.keys[layer], paged.attention.values[layer]
    return (
        torch.stack([keys[block, :, slot] for block, slot in places]),
        torch.stack([values[block, :, slot] for block, slot in places]),
    )


def test_writes_only_its_own_slots() -> None:
    """A step that brings three tokens changes three rows per head and layer, and nothing else."""
    pool = poisoned_pool(layout_of([None], 16, 3, torch.float32, slots=2), 40, 3, torch.float32)
    spans = [SequenceSpan([Held([5, 9])], 15, 2), SequenceSpan([Held([2])], 0, 1)]
    attention = TorchAttention(pool, scale=SCALE)
    step = attention.plan(spans)
    key, value = torch.zeros(3, 3, HEAD_DIM), torch.ones(3, 3, HEAD_DIM)
    step.run(1, torch.zeros(3, 6, HEAD_DIM), key, value)
    sides = [attention.keys[0], attention.values[0], attention.keys[1], attention.values[1]]
    written = {
        (number, *place) for number, side in enumerate(sides) for place in (~side.isnan()).any(-1).nonzero().tolist()
    }
    # (side, block, head, slot): token 15 is the last of block 5, 16 the first of block 9.
    assert written == {
        (side, block, head, slot) for side in (2, 3) for head in range(3) for block, slot in ((5, 15), (9, 0), (2, 0))
    }
    assert attention.values[1][9, :, 0].eq(1).all()


def test_refuses_a_pool_that_is_packed() -> None:
    layout = KvLayout(16, 16 * 2 * (HEAD_DIM + 2), (TableLayout((0,), None),), step_tokens=1)
    pool = KVPool.allocate(
        layout, [LayerFormat(INT8, INT8)], num_blocks=1, kv_heads=1, head_dim=HEAD_DIM, device=torch.device("cpu")
    )
    with pytest.raises(ValueError, match="attends to BF16 or FLOAT32 alone, but the pool has INT8"):
        TorchAttention(pool, scale=SCALE)


@pytest.mark.parametrize(
    ("span", "message"),
    [
        (SequenceSpan([Held([1, 2]), Held([3, 4, 5])], 31, 2), "blocks 0 to 2 of 16, but table 0 holds 2 from 0"),
        (SequenceSpan([Held([1, 2, 3]), Held([4], 2)], 31, 2), "blocks 1 to 2 of 16, but table 1 holds 1 from 2"),
        (SequenceSpan([Held([1]), Held([2])], 4, 0), "needs new tokens"),
        (SequenceSpan([Held([1])], 4, 1), "has 1 block tables, but the layout 2"),
    ],
)  # fmt: skip
def test_refuses_spans_that_cannot_run(span: SequenceSpan, message: str) -> None:
    pool = poisoned_pool(layout_of([None, 10], 16, 1, torch.float32), 8, 1, torch.float32)
    with pytest.raises(ValueError, match=message):
        TorchAttention(pool, scale=SCALE).plan([span])
