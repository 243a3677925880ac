"""The formats and attention once more, in the fewest lines of torch, and a pool of packed blocks to attend over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from kvtide_kernels.attention import SequenceSpan
from kvtide_kernels.key_basis import KeyBasis
from kvtide_kernels.pool import KVPool
from kvtide_kernels.triton.arena import Arena
from kvtide_kernels.triton.attention import TritonAttention
from kvtide_sizing.formats import BF16, INT4, INT8, LayerFormat, VectorFormat
from kvtide_sizing.memory.kv import KvLayout, TableLayout

FORMATS = [
    LayerFormat(BF16, BF16),
    LayerFormat(INT8, INT8),
    LayerFormat(INT8, INT4),
    LayerFormat(INT4, INT4),
    LayerFormat(BF16, INT4),
    LayerFormat(INT4, INT8),
]


def name(stored: LayerFormat) -> str:
    """As a test's id."""
    return f"K{stored.key.name}-V{stored.value.name}"


def rotation(dim: int) -> torch.Tensor:
    """[dim, dim]: Sylvester's matrices of the largest power of two that divides dim, along the diagonal."""
    run = dim & -dim
    matrix = torch.ones(1, 1)
    while len(matrix) < run:
        matrix = torch.kron(matrix, torch.tensor([[1.0, 1.0], [1.0, -1.0]]))
    return torch.block_diag(*[matrix / run**0.5] * (dim // run))


def levels(x: torch.Tensor, stored: VectorFormat) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(levels, scale, zero) of vectors [..., dim] that are rotated already where they are; scale and zero float16."""
    low, high = (x * 0).amin(-1), x.abs().amax(-1)
    least, most, steps = -127, 127, 127.0
    if stored == INT4:
        low, high = x.amin(-1), x.amax(-1)
        least, most, steps = 0, 15, 15.0
    scale, zero = ((high - low) / steps).half(), low.half()
    divisor = torch.where(scale > 0, scale.float(), torch.inf)[..., None]
    return ((x - zero.float()[..., None]) / divisor).round().clamp(least, most), scale, zero


def kept(x: torch.Tensor, stored: VectorFormat) -> torch.Tensor:
    """What is left of vectors [..., dim] once they have been stored."""
    if stored == BF16:
        return x.bfloat16().float()
    turn = rotation(x.shape[-1]) if stored == INT4 else torch.eye(x.shape[-1])
    level, scale, zero = levels(x @ turn, stored)
    return (level * scale.float()[..., None] + zero.float()[..., None]) @ turn


def put(arena: Arena, block: int, row: int, x: torch.Tensor) -> None:
    """Store one token's vectors [kv_heads, dim], byte by byte as the layout says."""
    stored, size, dim = arena.format, arena.block_size, x.shape[-1]
    head = arena.storage[block]
    data = head[:, : size * arena.data_bytes].unflatten(1, (size, -1))[:, row]
    if stored == BF16:
        data.copy_(x.bfloat16().view(torch.uint8))
        return
    turn = rotation(dim) if stored == INT4 else torch.eye(dim)
    level, scale, zero = levels(x @ turn, stored)
    per_token = head[:, size * arena.data_bytes :].unflatten(1, (-1, size, 2))
    per_token[:, 0, row] = scale[:, None].view(torch.uint8)
    if stored == INT4:
        per_token[:, 1, row] = zero[:, None].view(torch.uint8)
        level = level[:, 0::2] + 16 * level[:, 1::2]
    data.copy_(level.to(torch.int8 if stored == INT8 else torch.uint8).view(torch.uint8))


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    soft_cap: float | None = None,
    window: int | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """The last len(query) tokens of a sequence over all of it, [tokens, heads, dim]."""
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", query, key) * scale
    if soft_cap is not None:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    position = torch.arange(len(key))
    behind = position[len(key) - len(query) :, None] - position
    scores = scores.masked_fill((behind < 0) | (behind >= (window or len(key))), -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks[:, None, None].expand(-1, len(query), 1)], -1)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1)[..., : len(key)], value)


@dataclass
class Held:
    """A sequence's block table."""

    blocks: list[int]
    first: int = 0
    recent: list[int] = field(default_factory=list)


@dataclass
class Case:
    """A layer of packed K and V, sequences in it, and a step of theirs. Every byte not stored is 0xff: NaN in floats.

    spans: (past, new) tokens of each sequence
    """

    stored: LayerFormat
    spans: Sequence[tuple[int, int]]
    dim: int = 64
    group: int = 3
    kv_heads: int = 1
    block: int = 16
    window: int | None = None
    soft_cap: float | None = None
    sinks: bool = False
    programs: int | None = None
    seed: int = 0
    held: list[Held] = field(default_factory=list)

    def build(self) -> None:
        """Draw K and V, in bfloat16's numbers, and store the past."""
        torch.manual_seed(self.seed)
        self.scale = 1.5 * self.dim**-0.5
        table = TableLayout((0,), self.window)
        token_bytes = sum(side.vector_bytes(self.dim) for side in (self.stored.key, self.stored.value))
        self.layout = KvLayout(self.block, self.block * self.kv_heads * token_bytes, (table,), 512)
        needs = [range(table.first_needed(p) // self.block, -(-(p + n) // self.block)) for p, n in self.spans]
        num_blocks = sum(map(len, needs)) + 3
        free = torch.randperm(num_blocks).tolist()
        self.held = [Held([free.pop() for _ in need], need.start) for need in needs]
        self.pool = pool_of_nan(self.layout, [self.stored], num_blocks, self.kv_heads, self.dim)
        layer = self.pool.layers[0]
        self.key = Arena(self.stored.key, self.dim, self.block, layer.key)
        self.value = Arena(self.stored.value, self.dim, self.block, layer.value)
        self.sink_logits = torch.randn(self.query_heads) if self.sinks else None
        self.history = []
        for (past, new), held in zip(self.spans, self.held, strict=True):
            drawn = torch.randn(2, past + new, self.kv_heads, self.dim).bfloat16().float()
            drawn[0, :, :, 1] *= 8  # keys have outliers
            self.history.append(drawn)
            for token in range(held.first * self.block, past):
                block = held.blocks[token // self.block - held.first]
                put(self.key, block, token % self.block, drawn[0, token])
                put(self.value, block, token % self.block, drawn[1, token])
        self.query = torch.randn(sum(new for _, new in self.spans), self.query_heads, self.dim).bfloat16().float()

    @property
    def query_heads(self) -> int:
        """Of a token."""
        return self.group * self.kv_heads

    def attention(self, basis: KeyBasis | None = None) -> TritonAttention:
        """The kernels over the pool, keys in that basis."""
        return TritonAttention(
            self.pool,
            query_heads=self.query_heads,
            scale=self.scale,
            soft_cap=self.soft_cap,
            sinks={} if self.sink_logits is None else {0: self.sink_logits},
            bases={} if basis is None else {0: basis},
            programs=self.programs,
        )

    def sequences(self) -> list[SequenceSpan]:
        """The spans with their tables."""
        return [SequenceSpan([held], *span) for held, span in zip(self.held, self.spans, strict=True)]

    def fresh(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The step's new keys and values."""
        sides = [drawn[:, past:] for drawn, (past, _) in zip(self.history, self.spans, strict=True)]
        key, value = torch.cat(sides, 1)
        return key, value

    def run(self) -> torch.Tensor:
        """The kernels' result."""
        return self.attention().plan(self.sequences()).run(0, self.query, *self.fresh())

    def expected(self) -> torch.Tensor:
        """Dense attention over what the formats leave: of the past, and of a decode's new token too."""
        out, row = [], 0
        for (past, new), drawn in zip(self.spans, self.history, strict=True):
            packed = past + new if new == 1 else past
            key = torch.cat([kept(drawn[0, :packed], self.stored.key), drawn[0, packed:]])
            value = torch.cat([kept(drawn[1, :packed], self.stored.value), drawn[1, packed:]])
            query = self.query[row : row + new]
            out.append(attend(query, key, value, self.scale, self.soft_cap, self.window, self.sink_logits))
            row += new
        return torch.cat(out)

    def check(self) -> None:
        """The kernels' result is the expected one, but for the order of float32 sums."""
        self.build()
        torch.testing.assert_close(self.run(), self.expected(), atol=3e-4, rtol=1e-3)


def pool_of_nan(
    layout: KvLayout, formats: Sequence[LayerFormat], num_blocks: int, kv_heads: int, head_dim: int
) -> KVPool:
    """A pool whose every byte is 0xff."""
    pool = KVPool.allocate(
        layout, formats, num_blocks=num_blocks, kv_heads=kv_heads, head_dim=head_dim, device=torch.device("cpu")
    )
    pool.storage.fill_(255)
    return pool
