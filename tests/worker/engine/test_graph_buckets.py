"""Which batches have a graph, and which one a step takes."""

from __future__ import annotations

import pytest

from kvtide_worker.engine.graph_buckets import Bucket, bucket_for, buckets_up_to
from tests.worker.engine.layouts import layout_of

LAYOUT = layout_of([None], block_size=64)


def sizes(batch_limit: int, vocab_size: int = 32_000) -> list[int]:
    found = buckets_up_to(batch_limit, layout=LAYOUT, max_context_tokens=4096, vocab_size=vocab_size)
    return [bucket.sequences for bucket in found]


@pytest.mark.parametrize(
    ("batch_limit", "expected"),
    [
        (1, [1]),
        (2, [1, 2]),
        (3, [1, 2, 3]),
        (8, [1, 2, 4, 8]),
        (20, [1, 2, 4, 8, 16, 20]),
        (32, [1, 2, 4, 8, 16, 24, 32]),
    ],
)
def test_batches_up_to_the_limit(batch_limit: int, expected: list[int]) -> None:
    assert sizes(batch_limit) == expected


def test_their_number_is_bounded() -> None:
    """1, 2, 4, and 32 multiples of 8: 256 is the largest batch that a plan has on a GPU."""
    assert len(sizes(256)) == 35


def test_logits_of_a_large_vocabulary_bound_the_batch() -> None:
    """128 MiB for logits twice, of Gemma 3's 262,144 entries in 2 bytes: 1 MiB a sequence."""
    assert sizes(256, vocab_size=262_144)[-1] == 128


@pytest.mark.parametrize(
    ("sequences", "tokens"),
    [
        (1, 131_072),  # 65,536 entries of 64 tokens are 4 Mi tokens
        (32, 131_072),  # 65,536 / 32 = 2,048 blocks of 64
        (64, 65_536),
        (256, 16_384),
    ],
)
def test_large_batches_have_room_for_shorter_sequences(sequences: int, tokens: int) -> None:
    buckets = buckets_up_to(256, layout=LAYOUT, max_context_tokens=131_072, vocab_size=32_000)
    assert Bucket(sequences, tokens) in buckets


BUCKETS = (Bucket(1, 1000), Bucket(2, 500), Bucket(4, 100))


@pytest.mark.parametrize(
    ("tokens", "sequences"),
    [
        ([1], 1),
        ([1000], 1),
        ([1001], None),
        ([500, 3], 2),
        ([501, 3], None),
        ([7, 8, 9], 4),
        ([100] * 4, 4),
        ([100] * 5, None),
    ],
)
def test_the_smallest_with_room(tokens: list[int], sequences: int | None) -> None:
    found = bucket_for(BUCKETS, tokens)
    assert (found.sequences if found else None) == sequences


def test_without_graphs_there_is_none() -> None:
    assert bucket_for((), [1]) is None
