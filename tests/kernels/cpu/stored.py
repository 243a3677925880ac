"""What the CPU kernels' tests share: a pool that is NaN where nobody wrote, and the reference over a copy of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from kvtide_kernels.attention import SequenceSpan
from kvtide_kernels.cpu.attention import CpuAttention
from kvtide_kernels.cpu.library import library
from kvtide_kernels.hadamard import hadamard
from kvtide_kernels.key_basis import KeyBasis
from kvtide_kernels.pool import KVPool
from kvtide_kernels.reference import ReferenceAttention, attend
from kvtide_sizing.formats import BF16, INT4, INT8, RECENT_TOKENS, LayerFormat
from kvtide_sizing.memory.kv import KvLayout, TableLayout
from tests.kernels.paged import Held

FORMATS = {
    f"{key.name}-{value.name}": LayerFormat(key, value) for key in (BF16, INT8, INT4) for value in (BF16, INT8, INT4)
}


@dataclass
class Stored:
    """A sequence: its block tables, and what each layer was given of it."""

    tables: list[Held]
    past: int = 0
    recent_from: int = 0
    keys: list[list[torch.Tensor]] = field(default_factory=list)
    values: list[list[torch.Tensor]] = field(default_factory=list)


@dataclass(frozen=True)
class Result:
    """What came out of a layer, what the reference says, how large the terms of its sums were, and how wrong it may be.

    allowed: [tokens, query_heads, 1], of the terms
    """

    got: torch.Tensor
    wanted: torch.Tensor
    terms: torch.Tensor
    allowed: torch.Tensor

    def check(self) -> None:
        """Of a head's largest terms, as rotated values spread what is rounded over all elements."""
        error = (self.got - self.wanted).abs() / self.terms
        # Not the other way round: NaN is no small error.
        assert (error <= self.allowed).all(), f"an error of {(error / self.allowed).max():.2f} times what is allowed"


class Cache:
    """A pool, all NaN, and sequences that take blocks in no order and drop them behind the window.

    formats: one a layer, dealt out in turn to a table for each of the windows
    recent:  whether the layout has recent tokens, in layers that keep any
    """

    def __init__(
        self,
        *formats: LayerFormat,
        kv_heads: int = 2,
        group: int = 2,
        head_dim: int = 64,
        block_size: int = 16,
        windows: Sequence[int | None] = (None,),
        soft_cap: float | None = None,
        sinks: bool = False,
        bases: bool = False,
        recent: bool = True,
        num_blocks: int = 64,
        instruction_set: str | None = None,
    ) -> None:
        self.formats, self.kv_heads, self.group, self.head_dim = formats, kv_heads, group, head_dim
        self.windows, self.scale, self.soft_cap = windows, head_dim**-0.5, soft_cap
        layers = range(len(formats))
        self.sinks = {layer: torch.randn(kv_heads * group) for layer in layers if sinks}
        self.bases = {
            layer: basis_of(kv_heads, head_dim, centred=soft_cap is None and not sinks)
            for layer in layers
            if bases and formats[layer].has_key_basis
        }
        tables = tuple(
            TableLayout(tuple(layers[start :: len(windows)]), window) for start, window in enumerate(windows)
        )
        slots = zip(*(table.layers for table in tables), strict=True)
        width = sum(
            max(side.vector_bytes(head_dim) for side in sides)
            for slot in slots
            for sides in ([formats[layer].key for layer in slot], [formats[layer].value for layer in slot])
        )
        keeps_recent = recent and any(stored.keeps_recent for stored in formats)
        self.layout = KvLayout(
            block_size, block_size * kv_heads * width, tables, 512, RECENT_TOKENS if keeps_recent else 0
        )
        self.pool, self._copy = (
            KVPool.allocate(
                self.layout,
                formats,
                num_blocks=num_blocks,
                kv_heads=kv_heads,
                head_dim=head_dim,
                device=torch.device("cpu"),
            )
            for _ in range(2)
        )
        self.pool.storage.fill_(255)
        self.attention = CpuAttention(
            self.pool,
            scale=self.scale,
            soft_cap=soft_cap,
            sinks=self.sinks,
            bases=self.bases,
            kernels=library(instruction_set),
        )
        self._reference = ReferenceAttention(
            self.layout, self._copy.layers, scale=self.scale, soft_cap=soft_cap, sinks=self.sinks, bases=self.bases
        )
        self.free = torch.randperm(num_blocks).tolist()

    def sequence(self) -> Stored:
        """A new one, with blocks for its recent tokens."""
        tables = [Held(recent=[self.free.pop() for _ in range(self.layout.recent_blocks)]) for _ in self.windows]
        return Stored(tables, keys=[[] for _ in self.formats], values=[[] for _ in self.formats])

    def span(self, held: Stored, new: int) -> SequenceSpan:
        """Blocks for new tokens."""
        for table in held.tables:
            while (table.first + len(table.blocks)) * self.layout.block_size < held.past + new:
                table.blocks.append(self.free.pop())
        return SequenceSpan(held.tables, held.past, new, held.recent_from)

    def vectors(self, tokens: int, heads: int) -> torch.Tensor:
        """Random bfloat16 [tokens, heads, head_dim] with an outlier channel, as keys have."""
        x = torch.randn(tokens, heads, self.head_dim)
        x[..., 3] *= 4
        return x.bfloat16()

    def step(self, work: list[tuple[Stored, int]]) -> list[Result]:
        """Run a step of (sequence, new tokens) in every layer."""
        news = [new for _, new in work]
        spans = [self.span(held, new) for held, new in work]
        self._copy.storage.copy_(self.pool.storage)
        step, reference = self.attention.plan(spans), self._reference.plan(spans)
        results = []
        for layer in range(len(self.formats)):
            query = self.vectors(sum(news), self.kv_heads * self.group)
            key, value = self.vectors(sum(news), self.kv_heads), self.vectors(sum(news), self.kv_heads)
            out = step.run(layer, query, key, value).double()
            # In float32, as bases are: bfloat16 would round once more what they make.
            wanted = reference.run(layer, query.float(), key.float(), value.float()).double()
            for (held, new), q, k, v, *both in zip(
                work, *(x.split(news) for x in (query, key, value, out, wanted)), strict=True
            ):
                held.keys[layer].append(k)
                held.values[layer].append(v)
                # With all values positive, attention is how large the terms were.
                terms = attend(
                    q,
                    torch.cat(held.keys[layer]),
                    torch.cat(held.values[layer]).abs(),
                    scale=self.scale,
                    positions=torch.arange(held.past, held.past + new),
                    window=self.windows[layer % len(self.windows)],
                    soft_cap=self.soft_cap,
                    sinks=self.sinks.get(layer),
                )
                allowed = self._allowed(layer, q, torch.cat(held.keys[layer]))
                results.append(Result(*both, terms.amax(-1, keepdim=True), allowed))
        for held, new in work:
            held.past += new
            self._drop(held)
        return results

    def _allowed(self, layer: int, query: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """What rounding may do to a result of these queries, of its terms.

        bfloat16 rounds a result by 2^-8 of it, and the weights of values in bfloat16 by as much: 2^-7 together.
        It rounds queries in a basis too, where they meet recent tokens: as much as it rounds those.
        AVX-512 has one byte, 127 levels of the largest element, for queries of keys in INT4 or in a basis: an error of
        a level's 1 / sqrt(12) in each element, the score's by as many standard deviations as nobody sees. And one for
        weights of packed values, 255 levels, of which 64 tokens make an error of sqrt(64) · 0.4 levels at worst, the
        standard deviation.
        """
        stored, basis = self.formats[layer], self.bases.get(layer)
        allowed = torch.full((*query.shape[:2], 1), 2.0**-7)
        if basis and self.layout.recent and stored.keeps_recent:
            allowed += 2.0**-7
        if self.attention.library.instruction_set == "avx512":
            query, keys = query.float(), keys.float()
            if basis:
                query, keys = basis.queries(query), basis.keys(keys)
            if stored.key is INT4:
                query = hadamard(query)
            if stored.key is INT4 or (stored.key is INT8 and basis):
                level = query.abs().amax(-1, keepdim=True) / 127
                allowed += 5 * level / 12**0.5 * keys.norm(dim=-1).max() * self.scale
            if stored.value is not BF16:
                allowed += 3 * 8 * 0.4 / 255
        return allowed

    def _drop(self, held: Stored) -> None:
        for number, (table, of_layers) in enumerate(zip(held.tables, self.layout.tables, strict=True)):
            while (table.first + 1) * self.layout.block_size <= of_layers.first_needed(held.past):
                block = table.blocks.pop(0)
                table.first += 1
                for layer in self.pool.layers:
                    if layer.table == number:
                        layer.key[block], layer.value[block] = 255, 255
                self.free.insert(0, block)


def basis_of(kv_heads: int, head_dim: int, *, centred: bool) -> KeyBasis:
    """Some basis: an invertible matrix, whose lengths differ up to 4 times, and a centre where the softmax allows."""
    turn = torch.linalg.qr(torch.randn(kv_heads, head_dim, head_dim)).Q
    other = torch.linalg.qr(torch.randn(kv_heads, head_dim, head_dim)).Q
    lengths = torch.exp2(2 * torch.rand(kv_heads, 1, head_dim) - 1)
    centre = torch.randn(kv_heads, head_dim) if centred else torch.zeros(kv_heads, head_dim)
    return KeyBasis(((turn * lengths) @ other.mT).contiguous(), ((turn / lengths) @ other.mT).contiguous(), centre)


def check(cache: Cache, steps: list[list[int]]) -> None:
    """Steps of new tokens for each sequence, 0 for none; all results against what they should be."""
    sequences = [cache.sequence() for _ in steps[0]]
    for news in steps:
        for result in cache.step([(held, new) for held, new in zip(sequences, news, strict=True) if new]):
            result.check()
