"""Which batches of decodes have a CUDA graph, and which one a step is replayed by. No torch in here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvtide_sizing.memory.kv import KvLayout
from kvtide_sizing.memory.overhead import GRAPHS_BYTES

# Batches of 1, 2, 4, 8, and of every multiple of 8 behind them: padding costs a large batch an eighth at most of what
# it computes, and 256 sequences have 35 graphs.
_SMALLEST = (1, 2, 4)
_APART = 8

# A refill writes every entry of a graph's block tables, whoever is in the batch: so many take the host a millisecond
# or two. Longer sequences than these hold run without a graph.
_MOST_TABLE_ENTRIES = 1 << 16

_BF16 = 2


@dataclass(frozen=True)
class Bucket:
    """A graph's room: sequences in its batch, padding included, and tokens of the longest one, its new one included."""

    sequences: int
    tokens: int


def buckets_up_to(
    batch_limit: int, *, layout: KvLayout, max_context_tokens: int, vocab_size: int
) -> tuple[Bucket, ...]:
    """Of each graph, the smallest batch first; the last has batch_limit sequences, or as many as have room for logits.

    Logits stand twice, as they are computed and where the sampler finds them; half of `GRAPHS_BYTES` is theirs.
    """
    most = max(1, min(batch_limit, GRAPHS_BYTES // 2 // (2 * vocab_size * _BF16)))
    sizes = sorted({*(size for size in _SMALLEST if size < most), *range(_APART, most, _APART), most})
    found = []
    for sequences in sizes:
        blocks = _MOST_TABLE_ENTRIES // (sequences * len(layout.tables)) - layout.recent_blocks
        tokens = min(max_context_tokens, blocks * layout.block_size)
        if tokens > 0:
            found.append(Bucket(sequences, tokens))
    return tuple(found)


def bucket_for(buckets: Sequence[Bucket], tokens: Sequence[int]) -> Bucket | None:
    """The smallest with room for sequences of so many tokens each, their new ones included; None where none has.

    buckets: the smallest batch first
    """
    longest = max(tokens, default=0)
    for bucket in buckets:
        if len(tokens) <= bucket.sequences and longest <= bucket.tokens:
            return bucket
    return None
