"""Which prefixes are found: rows for tables, windows, salts and what was taken again."""

from __future__ import annotations

from hashlib import sha256

import pytest

from kvtide_sizing.formats import BF16, INT8, LayerFormat
from kvtide_worker.engine.block_manager import BlockManager, SequenceBlocks
from kvtide_worker.engine.prefix_cache import ALIGNED_TOKENS, BlockChain, PrefixCache
from tests.worker.engine.layouts import layout_of


class Bench:
    """Sequences over one pool; each is run to its end and released, unless it is kept."""

    def __init__(self, *windows: int | None, num_blocks: int = 40, aligned_tokens: int = 4, recent: int = 0) -> None:
        layout = layout_of(windows, recent=recent)
        self.prefix = PrefixCache(layout, aligned_tokens=aligned_tokens)
        self.blocks = BlockManager(layout, num_blocks, self.prefix)

    def admit(self, tokens: list[int], salt: str = "") -> SequenceBlocks:
        sequence = SequenceBlocks()
        sequence.chain = self.prefix.chain(salt, lambda start, end: tokens[start:end])
        assert self.blocks.admit(sequence, len(tokens), 0)
        return sequence

    def compute(self, sequence: SequenceBlocks, *chunks: int) -> None:
        for chunk in chunks:
            assert self.blocks.reserve(sequence, sequence.num_tokens + chunk)
            self.blocks.advance(sequence, chunk)

    def run(self, tokens: list[int], salt: str = "") -> None:
        sequence = self.admit(tokens, salt)
        self.compute(sequence, len(tokens) - sequence.num_tokens)
        self.blocks.release(sequence)

    def found(self, tokens: list[int], salt: str = "") -> int:
        """Tokens that such a sequence would not compute."""
        chain = self.prefix.chain(salt, lambda start, end: tokens[start:end])
        return len(self.prefix.find(chain, len(tokens))) * self.blocks.layout.block_size


@pytest.mark.parametrize(
    ("prompt", "found"),
    [
        (list(range(20)), 16),  # 5 blocks of 4, of which two tokens at least are computed again
        (list(range(18)), 16),
        (list(range(17)), 12),  # one token alone would be left
        (list(range(30)), 20),
        ([*range(9), 99, *range(10, 20)], 8),
        ([99, *range(1, 20)], 0),
        ([1], 0),
    ],
)
def test_the_longest_prefix_is_found(prompt: list[int], found: int) -> None:
    bench = Bench(None)
    bench.run(list(range(20)))
    assert bench.found(prompt) == found


def test_a_hit_ends_where_chunks_may_begin() -> None:
    bench = Bench(None, aligned_tokens=8)
    bench.run(list(range(30)))
    assert [bench.found(list(range(length))) for length in (9, 10, 17, 18, 30)] == [0, 8, 8, 16, 24]


def test_recent_tokens_are_computed_with_all_of_theirs() -> None:
    """Three are kept in BF16 beside: six at least are left to compute."""
    bench = Bench(None, aligned_tokens=8, recent=3)
    bench.run(list(range(30)))
    assert [bench.found(list(range(length))) for length in (13, 14, 21, 22, 30)] == [0, 8, 8, 16, 24]


def test_a_chunk_that_began_elsewhere_is_not_found() -> None:
    bench = Bench(None, aligned_tokens=8)
    sequence = bench.admit(list(range(30)))
    bench.compute(sequence, 8, 4, 18)
    assert bench.found(list(range(30))) == 8
    # decodes may
    other = bench.admit(list(range(100, 130)))
    bench.compute(other, 9, *[1] * 21)
    assert bench.found(list(range(100, 130))) == 24


def test_a_hit_outlives_its_blocks_where_a_window_sees_none_of_them() -> None:
    """A window of one token needs nothing of a prefix but to know it: its only block is taken for what follows."""
    bench = Bench(1, num_blocks=1)
    bench.run(list(range(4)))
    sequence = bench.admit(list(range(6)))
    assert sequence.num_tokens == 4
    bench.compute(sequence, 2)
    bench.blocks.release(sequence)
    assert len(bench.prefix) == 0
    assert bench.blocks.free_blocks == 1


def test_salts_do_not_see_each_other() -> None:
    bench = Bench(None)
    bench.run(list(range(20)), "a")
    assert [bench.found(list(range(20)), salt) for salt in ("a", "b", "")] == [16, 0, 0]


def test_roots_cannot_be_known_and_depend_on_the_formats() -> None:
    """The chain as it is written down, from a root of 32 random bytes and more."""
    tokens, layout = list(range(8)), layout_of([None])

    def digest(cache: PrefixCache) -> bytes:
        return cache.chain("", lambda start, end: tokens[start:end])[1][0]

    one, other = (PrefixCache(layout, formats=[LayerFormat(stored, stored)]) for stored in (BF16, INT8))
    assert len({digest(one), digest(other), digest(PrefixCache(layout))}) == 3
    known = BlockChain(b"root", 4, lambda start, end: tokens[start:end])
    blocks = [b"".join(token.to_bytes(4, "little") for token in tokens[at : at + 4]) for at in (0, 4)]
    assert known[1] == (sha256(sha256(b"root" + blocks[0]).digest() + blocks[1]).digest(), blocks[1])


def test_a_digest_of_other_tokens_is_no_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if SHA-256 gave the same for all: tokens are compared, and what cannot be told apart is not sealed."""

    class Same:
        def __init__(self, data: bytes) -> None:
            pass

        def digest(self) -> bytes:
            return b"same"

    monkeypatch.setattr("kvtide_worker.engine.prefix_cache.sha256", Same)
    bench = Bench(None)
    bench.run(list(range(20)))
    assert bench.found(list(range(20))) == 4
    assert bench.found(list(range(50, 70))) == 0
    bench.run(list(range(50, 70)))
    assert bench.found(list(range(50, 70))) == 0


def test_a_window_needs_only_what_it_sees() -> None:
    """Window 5: behind 16 tokens the next one sees 12 to 15, in one block. The full table needs all four."""
    bench = Bench(None, 5, num_blocks=13)
    bench.run(list(range(18)))
    assert bench.blocks.cached_blocks == 8
    found = bench.admit(list(range(18)))
    assert found.num_tokens == 16
    assert [(table.first, len(table.blocks)) for table in found.tables] == [(0, 5), (3, 2)]
    # 7 of 13 blocks, 5 of them found
    assert bench.blocks.available_blocks == 6


def test_each_table_must_have_its_blocks() -> None:
    """The blocks that the window left were cached first, and are taken first: shorter hits are gone with them."""
    bench = Bench(None, 5, num_blocks=13)
    bench.run(list(range(18)))
    # Behind 8 tokens the next one sees 4 to 7, in the second block of the windowed table.
    assert [bench.found(list(range(length))) for length in (10, 14, 18)] == [8, 12, 16]
    # 5 are free and 8 cached. 7 take those and two of the cached ones: the window's first and second.
    assert bench.admit(list(range(100, 117))).num_blocks == 7
    assert [bench.found(list(range(length))) for length in (10, 14, 18)] == [0, 12, 16]


def test_tails_are_taken_first() -> None:
    bench = Bench(None, num_blocks=8)
    bench.run(list(range(20)))
    bench.run([*range(8), *range(50, 58)])  # shares two blocks, and uses them later than the other three
    assert (bench.blocks.cached_blocks, bench.blocks.free_blocks) == (7, 1)
    stranger = bench.admit(list(range(100, 112)))
    assert len(stranger.tables[0].blocks) == 3
    assert bench.found(list(range(20))) == 12
    bench.blocks.release(stranger)
    stranger = bench.admit(list(range(100, 116)))
    assert bench.found(list(range(20))) == 8
    assert bench.found([*range(8), *range(50, 58)]) == 12


def test_nothing_is_remembered_of_what_is_gone() -> None:
    bench = Bench(None, num_blocks=6)
    for salt in "abcdefgh":
        bench.run(list(range(18)), salt)
        assert len(bench.prefix) <= 6
    bench.blocks.release(bench.admit(list(range(100, 124))))
    assert (len(bench.prefix), bench.blocks.free_blocks) == (0, 6)


def test_what_failed_is_not_found() -> None:
    bench = Bench(None)
    sequence = bench.admit(list(range(20)))
    bench.compute(sequence, 20)
    bench.blocks.release(sequence, kept=False)
    assert (bench.found(list(range(20))), bench.blocks.free_blocks, len(bench.prefix)) == (0, 40, 0)


def test_two_that_compute_the_same_keep_their_own() -> None:
    bench = Bench(None)
    one, two = bench.admit(list(range(20))), bench.admit(list(range(20)))
    bench.compute(one, 20)
    bench.compute(two, 20)
    assert bench.blocks.live_blocks == 10
    bench.blocks.release(two)
    assert (bench.blocks.live_blocks, bench.blocks.cached_blocks) == (5, 0)
    bench.blocks.release(one)
    assert (bench.blocks.live_blocks, bench.blocks.cached_blocks) == (0, 5)


def test_blocks_longer_than_a_tile_are_hits_of_whole_blocks() -> None:
    layout = layout_of([None], block_size=2 * ALIGNED_TOKENS)
    assert PrefixCache(layout).aligned_tokens == 2 * ALIGNED_TOKENS
