"""The oracle itself: against torch's own attention, on what was given for BF16 and on what is stored for the rest."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from kvtide_kernels.attention import SequenceSpan, seen_in_text
from kvtide_kernels.codec import decode, encode
from kvtide_kernels.key_basis import fit_key_basis
from kvtide_kernels.pool import StoredLayer
from kvtide_kernels.reference import ReferenceAttention
from kvtide_sizing.formats import BF16, INT4, INT8, LayerFormat, VectorFormat
from kvtide_sizing.memory.kv import KvLayout, TableLayout

BLOCK_SIZE = 16
SCALE = 0.2
FORMATS = [LayerFormat(key, value) for key in (BF16, INT8, INT4) for value in (BF16, INT8, INT4)]


@dataclass
class Held:
    """A sequence's block table, and every token that it was given: as it came, and as it is stored."""

    blocks: list[int] = field(default_factory=list)
    first: int = 0
    recent: list[int] = field(default_factory=list)
    given: tuple[torch.Tensor, ...] = ()
    stored: tuple[torch.Tensor, ...] = ()


class Cache:
    """Layers in poisoned arenas, one table for each window, and sequences that take blocks in no order."""

    def __init__(
        self,
        formats: list[LayerFormat],
        *,
        windows: tuple[int | None, ...] = (None,),
        kv_heads: int = 2,
        group: int = 3,
        head_dim: int = 32,
        value_dim: int | None = None,
        soft_cap: float | None = None,
        sinks: bool = False,
        recent: int = 0,
    ) -> None:
        self.formats, self.windows, self.soft_cap = formats, windows, soft_cap
        self.kv_heads, self.query_heads = kv_heads, kv_heads * group
        self.dims = head_dim, value_dim or head_dim
        self.random = torch.Generator().manual_seed(4)
        self.sinks = torch.randn(self.query_heads, generator=self.random) if sinks else None
        tables = tuple(
            TableLayout(tuple(range(table, len(formats), len(windows))), window) for table, window in enumerate(windows)
        )
        self.layout = KvLayout(BLOCK_SIZE, 1, tables, 512, recent)
        self.layers = [
            StoredLayer(stored, *self._arenas(stored), table=layer % len(windows))
            for layer, stored in enumerate(formats)
        ]
        self.attention = ReferenceAttention(
            self.layout,
            self.layers,
            scale=SCALE,
            soft_cap=soft_cap,
            sinks={} if self.sinks is None else dict.fromkeys(range(len(formats)), self.sinks),
        )
        self.free = torch.randperm(96, generator=self.random).tolist()

    def _arenas(self, stored: LayerFormat) -> list[torch.Tensor]:
        # All bytes 255: NaN in bfloat16 and float16.
        return [
            torch.full((96, self.kv_heads, BLOCK_SIZE * side.vector_bytes(dim)), 255, dtype=torch.uint8)
            for side, dim in zip((stored.key, stored.value), self.dims, strict=True)
        ]

    def sequence(self) -> list[Held]:
        """A new sequence: a table for each window."""
        return [
            Held(recent=[self.free.pop() for _ in range(self.layout.recent_blocks)], given=none, stored=none)
            for _ in self.windows
            for none in [tuple(torch.empty(0, self.kv_heads, dim, dtype=torch.float64) for dim in self.dims)]
        ]

    def step(
        self, layer: int, work: list[tuple[list[Held], int]], recent_from: int = 0
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Run (sequence, new tokens) in a layer; each one's result beside what torch's attention gives."""
        table = self.layers[layer].table
        spans, past = [], [len(held[table].given[0]) for held, _ in work]
        for (held, new), before in zip(work, past, strict=True):
            for one in held:
                while (one.first + len(one.blocks)) * BLOCK_SIZE < before + new:
                    one.blocks.append(self.free.pop())
            spans.append(SequenceSpan(held, before, new, recent_from))
        news = [new for _, new in work]
        query = self._vectors(sum(news), self.query_heads, self.dims[0])
        key, value = (self._vectors(sum(news), self.kv_heads, dim) for dim in self.dims)
        got = self.attention.plan(spans).run(layer, query, key, value)
        pairs = []
        for (held, new), q, k, v, out in zip(work, *(x.split(news) for x in (query, key, value, got)), strict=True):
            own, stored = held[table], self.formats[layer]
            own.given = tuple(torch.cat(both) for both in zip(own.given, (k, v), strict=True))
            packed = through(stored.key, k), through(stored.value, v)
            own.stored = tuple(torch.cat(both) for both in zip(own.stored, packed, strict=True))
            total = len(own.given[0])
            # What is seen as it came: a chunk's own tokens, and the last ones where a side has four bits.
            exact = total - new if new > 1 else total
            if stored.keeps_recent and self.layout.recent:
                newest = total if new == 1 else total - new
                exact = min(exact, max(recent_from, newest - self.layout.recent))
            seen = [torch.cat([kept[:exact], came[exact:]]) for came, kept in zip(own.given, own.stored, strict=True)]
            pairs.append((out, self.expected(q, *seen, self.windows[table])))
        return pairs

    def _vectors(self, tokens: int, heads: int, dim: int) -> torch.Tensor:
        return torch.randn(tokens, heads, dim, generator=self.random).bfloat16().double()

    def expected(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int | None) -> torch.Tensor:
        """Torch's attention in float64. A sink is a key whose score is the sink and whose value is 0."""
        behind = torch.arange(len(k) - len(q), len(k))[:, None] - torch.arange(len(k))
        seen = (behind >= 0) & (behind < (window or len(k)))
        q, k, v = (side.double().transpose(0, 1)[None] for side in (q, k, v))
        if self.soft_cap is None and self.sinks is None:
            out = scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=SCALE, enable_gqa=True)
            return out[0].transpose(0, 1)
        # Scores as a bias of a product that is 0.
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = q @ k.transpose(2, 3) * SCALE
        if self.soft_cap is not None:
            scores = self.soft_cap * (scores / self.soft_cap).tanh()
        scores = scores.masked_fill(~seen, -math.inf)
        if self.sinks is not None:
            sinks = self.sinks.double()[None, :, None, None].expand(1, -1, scores.shape[2], 1)
            scores, v = torch.cat([scores, sinks], -1), torch.cat([v, torch.zeros_like(v[:, :, :1])], 2)
        out = scaled_dot_product_attention(torch.zeros_like(q), torch.zeros_like(v), v, attn_mask=scores)
        return out[0].transpose(0, 1)


def through(stored: VectorFormat, x: torch.Tensor) -> torch.Tensor:
    """What a format keeps of vectors; nothing but bfloat16 ones are given, which BF16 keeps as they are."""
    return x if stored is BF16 else decode(stored, encode(stored, x), x.shape[-1]).double()


def check(cache: Cache, layer: int, steps: list[list[int]]) -> None:
    """Steps of new tokens of each sequence, 0 for none."""
    sequences = [cache.sequence() for _ in steps[0]]
    for news in steps:
        work = [(held, new) for held, new in zip(sequences, news, strict=True) if new]
        for got, expected in cache.step(layer, work):
            torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


# Prompts that end before, at and behind a block's border; chunks after a past; decodes beside prefills.
STEPS = [[1, 15, 16, 17], [1, 1, 1, 40], [0, 33, 1, 1], [1, 1, 2, 1]]


@pytest.mark.parametrize("stored", FORMATS, ids=lambda stored: f"{stored.key.name}-{stored.value.name}")
def test_every_format(stored: LayerFormat) -> None:
    check(Cache([stored]), 0, STEPS)


@pytest.mark.parametrize(("kv_heads", "group"), [(1, 8), (4, 1), (3, 3)], ids=["MQA", "MHA", "GQA"])
def test_groups(kv_heads: int, group: int) -> None:
    check(Cache([LayerFormat(INT8, INT4)], kv_heads=kv_heads, group=group), 0, STEPS)


@pytest.mark.parametrize("head_dim", [64, 80, 96, 112, 128, 192, 256])
def test_head_sizes(head_dim: int) -> None:
    check(Cache([LayerFormat(INT4, INT4)], head_dim=head_dim), 0, [[17, 3], [1, 20]])


def test_values_of_another_width() -> None:
    check(Cache([LayerFormat(INT8, INT4)], head_dim=48, value_dim=32), 0, STEPS)


@pytest.mark.parametrize("window", [1, 5, 16, 33])
def test_windows(window: int) -> None:
    check(Cache([LayerFormat(BF16, BF16)], windows=(window,)), 0, STEPS)


def test_layers_of_two_tables_and_of_a_format_each() -> None:
    cache = Cache([LayerFormat(BF16, BF16), LayerFormat(INT8, INT4), LayerFormat(INT4, BF16)], windows=(None, 20))
    for layer in range(3):
        check(cache, layer, [[40, 3], [1, 30]])


@pytest.mark.parametrize("soft_cap", [None, 0.5])
@pytest.mark.parametrize("sinks", [False, True])
def test_soft_capping_and_sinks(soft_cap: float | None, sinks: bool) -> None:
    check(Cache([LayerFormat(BF16, INT8)], windows=(20,), soft_cap=soft_cap, sinks=sinks), 0, STEPS)


# A prompt within the recent tokens, one of just as many and a longer one; then decodes past their number, and chunks
# that end in every part of it.
RECENT_STEPS = [[5, 32, 70], *[[1, 1, 1]] * 40, [33, 2, 40], [1, 64, 31], [1, 1, 1]]


@pytest.mark.parametrize("window", [None, 8, 40])
@pytest.mark.parametrize(
    "stored", [LayerFormat(INT4, INT4), LayerFormat(INT8, INT4), LayerFormat(BF16, INT4)], ids=["INT4", "K8V4", "K16V4"]
)
@pytest.mark.slow
def test_recent_tokens_are_seen_as_they_came(stored: LayerFormat, window: int | None) -> None:
    cache = Cache([stored], windows=(window,), recent=32)
    check(cache, 0, RECENT_STEPS)


def test_layers_of_eight_bits_keep_nothing_recent() -> None:
    check(Cache([LayerFormat(INT8, INT8)], recent=32), 0, RECENT_STEPS)


def test_recent_blocks_without_what_came_from_elsewhere() -> None:
    """A sequence that shares its first 40 tokens has none of them in its recent blocks, which are NaN."""
    cache = Cache([LayerFormat(INT4, INT4)], recent=32)
    held = cache.sequence()
    cache.step(0, [(held, 40)])
    for block in held[0].recent:
        cache.layers[0].key[block], cache.layers[0].value[block] = 255, 255
    for new in (1, 1, 3, *[1] * 40):
        for got, expected in cache.step(0, [(held, new)], recent_from=40):
            torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


def test_a_basis_changes_no_attention() -> None:
    """Keys in BF16 behind it and values as they are, decodes and chunks: it is within what BF16 rounds."""
    plain, turned = (Cache([LayerFormat(BF16, BF16)], head_dim=64) for _ in range(2))
    text = torch.randn(2, 200, 6, 64, generator=torch.Generator().manual_seed(5))
    basis = fit_key_basis(
        text[0], text[1, :, :2], seen_in_text(len(text[0]), None, torch.device("cpu")), scale=SCALE, centred=True
    )
    turned.attention.bases = {0: basis}
    held = plain.sequence(), turned.sequence()
    for new in (20, 1, 1, 5):
        expected, got = (cache.step(0, [(own, new)])[0][0] for cache, own in zip((plain, turned), held, strict=True))
        torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)


def test_blocks_behind_the_window_may_be_gone() -> None:
    cache = Cache([LayerFormat(INT8, INT8)], windows=(10,))
    held = cache.sequence()
    cache.step(0, [(held, 40)])
    # Token 40 attends from 31 on, in block 1: block 0 is given back, and another writes NaN to it.
    gone = held[0].blocks.pop(0)
    held[0].first = 1
    cache.layers[0].key[gone], cache.layers[0].value[gone] = 255, 255
    for got, expected in cache.step(0, [(held, 1)]):
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


def test_a_span_without_its_blocks_is_refused() -> None:
    cache = Cache([LayerFormat(BF16, BF16)])
    with pytest.raises(ValueError, match="17 tokens after 0 need the blocks 0 to 1 of 16, but table 0 holds 1"):
        cache.attention.plan([SequenceSpan([Held(blocks=[3])], 0, 17)])
