"""What the CPU kernels' tests share: arenas that are NaN where nobody wrote, and attention over what was stored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch

from kvtide_kernels.attention import SequenceSpan
from kvtide_kernels.block_view import BlockView
from kvtide_kernels.codec import decode
from kvtide_kernels.cpu.arenas import LayerArenas
from kvtide_kernels.cpu.attention import CpuAttention
from kvtide_kernels.cpu.library import library
from kvtide_kernels.reference import attend
from kvtide_sizing.formats import BF16, INT4, INT8, LayerFormat, VectorFormat
from kvtide_sizing.memory.kv import KvLayout, TableLayout

FORMATS = {
    f"{key.name}-{value.name}": LayerFormat(key, value) for key in (BF16, INT8, INT4) for value in (BF16, INT8, INT4)
}


@dataclass
class Held:
    """A sequence: its block table, and what it has stored."""

    blocks: list[int] = field(default_factory=list)
    first: int = 0
    past: int = 0
    keys: list[torch.Tensor] = field(default_factory=list)
    values: list[torch.Tensor] = field(default_factory=list)


@dataclass(frozen=True)
class Result:
    """What came out, and what says what should have, of the values."""

    got: torch.Tensor
    attend_to: Callable[[torch.Tensor], torch.Tensor]
    values: torch.Tensor

    def check(self) -> None:
        """bfloat16 rounds a result by 2^-8 of it, and the weights of values in bfloat16 by as much: 2^-7 together.

        Of a head's largest terms, as rotated values spread what is rounded over all elements.
        """
        error = (self.got - self.attend_to(self.values)).abs()
        # With all values positive, attention is how large the terms were.
        worst = (error / self.attend_to(self.values.abs()).amax(-1, keepdim=True)).max().item()
        assert worst <= 2**-7, f"an error of {worst:.5f} of the terms"


class Cache:
    """One layer's arenas, all NaN, and sequences that take blocks in no order and drop them behind the window."""

    def __init__(
        self,
        stored: LayerFormat,
        *,
        kv_heads: int = 2,
        group: int = 2,
        head_dim: int = 64,
        block_size: int = 16,
        window: int | None = None,
        softcap: float = 0.0,
        sinks: bool = False,
        num_blocks: int = 64,
        instruction_set: str | None = None,
    ) -> None:
        self.stored, self.kv_heads, self.group, self.head_dim = stored, kv_heads, group, head_dim
        self.block_size, self.window, self.softcap = block_size, window, softcap
        self.sinks = torch.randn(kv_heads * group) if sinks else None
        self.scale = head_dim**-0.5
        key, value = (
            torch.full((num_blocks, kv_heads, block_size * side.vector_bytes(head_dim)), 255, dtype=torch.uint8)
            for side in (stored.key, stored.value)
        )
        self.arenas = LayerArenas(stored, key, value, head_dim, block_size, self.sinks)
        self.layout = KvLayout(block_size, key[0].numel() + value[0].numel(), (TableLayout((0,), window),), 512)
        self.attention = CpuAttention(
            self.layout, [self.arenas], scale=self.scale, softcap=softcap, kernels=library(instruction_set)
        )
        self.free = torch.randperm(num_blocks).tolist()

    def span(self, held: Held, new: int) -> SequenceSpan:
        """Blocks for new tokens."""
        while (held.first + len(held.blocks)) * self.block_size < held.past + new:
            held.blocks.append(self.free.pop())
        return SequenceSpan([held], held.past, new)

    def vectors(self, tokens: int, heads: int) -> torch.Tensor:
        """Random bfloat16 [tokens, heads, head_dim] with an outlier channel, as keys have."""
        x = torch.randn(tokens, heads, self.head_dim)
        x[..., 3] *= 4
        return x.bfloat16()

    def kept(self, held: Held, new: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What the arenas have of a sequence's next `new` tokens, by the codec: keys and values in float64."""
        tokens = torch.arange(held.past, held.past + new)
        blocks = torch.tensor(held.blocks)[tokens // self.block_size - held.first]
        slots = tokens % self.block_size

        def side(arena: torch.Tensor, stored: VectorFormat) -> torch.Tensor:
            view = BlockView.of(arena, stored, self.block_size, self.head_dim)
            return decode(stored, view.read(blocks, slots), self.head_dim).double()

        return side(self.arenas.key, self.stored.key), side(self.arenas.value, self.stored.value)

    def step(self, work: list[tuple[Held, int]]) -> list[Result]:
        """Run a step of (sequence, new tokens)."""
        news = [new for _, new in work]
        step = self.attention.plan([self.span(held, new) for held, new in work])
        query = self.vectors(sum(news), self.kv_heads * self.group)
        key, value = self.vectors(sum(news), self.kv_heads), self.vectors(sum(news), self.kv_heads)
        out = step.run(0, query, key, value)
        results = []
        for (held, new), q, k, v, got in zip(work, *(x.split(news) for x in (query, key, value, out)), strict=True):
            kept_key, kept_value = self.kept(held, new)
            # A chunk's own tokens are attended to as they came, a decode's as it is stored.
            keys = torch.cat([*held.keys, kept_key if new == 1 else k.double()])
            values = torch.cat([*held.values, kept_value if new == 1 else v.double()])
            attend_to = partial(
                attend,
                q,
                keys,
                scale=self.scale,
                positions=torch.arange(held.past, held.past + new),
                window=self.window,
                soft_cap=self.softcap or None,
                sinks=self.sinks,
            )
            results.append(Result(got.double(), attend_to, values))
            held.keys.append(kept_key)
            held.values.append(kept_value)
            held.past += new
            self._drop(held)
        return results

    def _drop(self, held: Held) -> None:
        seen_from = 0 if self.window is None else max(0, held.past + 1 - self.window)
        while (held.first + 1) * self.block_size <= seen_from:
            block = held.blocks.pop(0)
            held.first += 1
            self.arenas.key[block], self.arenas.value[block] = 255, 255
            self.free.insert(0, block)


def check(cache: Cache, steps: list[list[int]]) -> None:
    """Steps of new tokens for each sequence, 0 for none; all results against what they should be."""
    sequences = [Held() for _ in steps[0]]
    for news in steps:
        for result in cache.step([(held, new) for held, new in zip(sequences, news, strict=True) if new]):
            result.check()
