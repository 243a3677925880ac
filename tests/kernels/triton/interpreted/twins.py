"""One pool twice, for the kernels and for `ReferenceAttention`, and sequences that grow in both step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from kvtide_kernels.attention import AttentionStep, SequenceSpan
from kvtide_kernels.key_basis import KeyBasis
from kvtide_kernels.reference import ReferenceAttention
from kvtide_kernels.triton.attention import TritonAttention
from kvtide_sizing.formats import INT4, LayerFormat
from kvtide_sizing.memory.kv import KvLayout, TableLayout
from tests.kernels.triton.interpreted.oracle import Held, pool_of_nan


@dataclass
class Tokens:
    """tables: its blocks; tokens: that it has; recent_from: as in `SequenceSpan`."""

    tables: list[Held]
    tokens: int = 0
    recent_from: int = 0


@dataclass
class Twins:
    """formats: of a table's layers; a table for each window. What no sequence holds is 0xff, a NaN in floats."""

    formats: Sequence[LayerFormat]
    windows: Sequence[int | None] = (None,)
    dim: int = 64
    group: int = 2
    kv_heads: int = 1
    block: int = 16
    recent: int = 32
    num_blocks: int = 64
    soft_cap: float | None = None
    sinks: bool = False
    based: bool = False
    programs: int = 1
    seed: int = 0
    sequences: list[Tokens] = field(default_factory=list)

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        count, kv_heads, dim = len(self.windows), self.kv_heads, self.dim
        layers = [
            TableLayout(tuple(range(table, count * len(self.formats), count)), window)
            for table, window in enumerate(self.windows)
        ]
        # Tables take turns with the formats, so that slots are wider than some of their layers.
        self.stored = [
            self.formats[(slot + table) % len(self.formats)]
            for slot in range(len(self.formats))
            for table in range(count)
        ]
        widths = [
            max(side(self.stored[layer]).vector_bytes(dim) for layer in slot)
            for slot in zip(*(table.layers for table in layers), strict=True)
            for side in (lambda one: one.key, lambda one: one.value)
        ]
        self.layout = KvLayout(self.block, self.block * kv_heads * sum(widths), tuple(layers), 512, self.recent)
        self.ours, self.theirs = (
            pool_of_nan(self.layout, self.stored, self.num_blocks, kv_heads, dim) for _ in range(2)
        )
        self.free = torch.randperm(self.num_blocks).tolist()
        self.query_heads = self.group * kv_heads
        numbers = range(len(self.stored))
        based = [layer for layer in numbers if self.based and self.stored[layer].has_key_basis]
        common = {
            "scale": dim**-0.5,
            "soft_cap": self.soft_cap,
            "sinks": {layer: torch.randn(self.query_heads) for layer in numbers} if self.sinks else {},
            "bases": {layer: a_basis(kv_heads, dim) for layer in based},
        }
        self.attention = TritonAttention(self.ours, query_heads=self.query_heads, programs=self.programs, **common)
        self.reference = ReferenceAttention(self.layout, self.theirs.layers, **common)

    def add(self) -> int:
        """A new sequence's number."""
        recent = [[self.free.pop() for _ in range(self.layout.recent_blocks)] for _ in self.windows]
        self.sequences.append(Tokens([Held([], 0, blocks) for blocks in recent]))
        return len(self.sequences) - 1

    def fork(self, number: int) -> int:
        """A new sequence with the same tokens, whose recent blocks have none of them."""
        copy, old = self.sequences[self.add()], self.sequences[number]
        copy.tokens = copy.recent_from = old.tokens
        for table, other in zip(copy.tables, old.tables, strict=True):
            table.first, table.blocks = other.first, [self.free.pop() for _ in other.blocks]
            for pool in (self.ours, self.theirs):
                for layer in pool.layers:
                    for arena in (layer.key, layer.value):
                        arena[table.blocks] = arena[other.blocks]
        return len(self.sequences) - 1

    def spans(self, news: Sequence[tuple[int, int]]) -> list[SequenceSpan]:
        """Spans of (sequence, new tokens), their blocks taken; blocks behind a window are given back, and poisoned."""
        found = []
        for number, new in news:
            one = self.sequences[number]
            for table, of_layers in zip(one.tables, self.layout.tables, strict=True):
                while table.blocks and table.first < of_layers.first_needed(one.tokens) // self.block:
                    self._poison(table.blocks.pop(0))
                    table.first += 1
                while (table.first + len(table.blocks)) * self.block < one.tokens + new:
                    table.blocks.append(self.free.pop())
            found.append(SequenceSpan(one.tables, one.tokens, new, one.recent_from))
        return found

    def _poison(self, block: int) -> None:
        self.free.insert(0, block)
        for pool in (self.ours, self.theirs):
            for layer in pool.layers:
                layer.key[block] = layer.value[block] = 255

    def draw(self, tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries of so many tokens, in float32 as results are, and their keys and values in bfloat16."""
        key, value = torch.randn(2, tokens, self.kv_heads, self.dim)
        key[..., 1] *= 8  # keys have outliers
        return torch.randn(tokens, self.query_heads, self.dim), key.bfloat16(), value.bfloat16()

    def step(self, *news: tuple[int, int]) -> None:
        """Run a step in both, in every layer: the results agree, and so does every byte of the pool."""
        spans = self.spans(news)
        self.check(spans, self.attention.plan(spans))
        for number, new in news:
            self.sequences[number].tokens += new

    def check(self, spans: Sequence[SequenceSpan], ours: AttentionStep, rows: int | None = None) -> None:
        """A planned step of these spans against the reference's. rows: of the batch, more than the spans have."""
        theirs = self.reference.plan(spans)
        tokens = sum(span.new_tokens for span in spans)
        for layer, stored in enumerate(self.stored):
            new = self.draw(rows or tokens)
            got = ours.run(layer, *new)[:tokens]
            torch.testing.assert_close(got, theirs.run(layer, *(side[:tokens] for side in new)), atol=3e-4, rtol=1e-3)
            # A rotation that sums in another order may put a level on the other side of a half.
            different = (self.ours.storage != self.theirs.storage).float().mean().item()
            assert different <= (0.001 if INT4 in (stored.key, stored.value) else 0)
            self.theirs.storage.copy_(self.ours.storage)


def a_basis(kv_heads: int, dim: int) -> KeyBasis:
    """Some invertible matrices, and their inverses by torch."""
    matrix = torch.eye(dim, dtype=torch.float64) + 0.3 * torch.randn(kv_heads, dim, dim, dtype=torch.float64) / dim**0.5
    return KeyBasis(matrix.float(), matrix.inverse().mT.float().contiguous(), torch.randn(kv_heads, dim))
