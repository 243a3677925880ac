"""Decode in plain torch: sequences with one new token each, in groups of bounded memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from kvtide_kernels.attention import SequenceSpan
from kvtide_kernels.pool import KVPool
from kvtide_kernels.torch_gather import dense_dtype, gather
from kvtide_sizing.memory.kv import TableLayout

# Tokens that a group of decoding sequences gathers at most, unless one sequence has more. Measured with the heads of
# SmolLM2-135M and Gemma 3 270M on two cores: from 1024 to 16384 nothing differs beyond the noise, and with no bound a
# step of 64 sequences of 1000 tokens takes twice as long, as every copy is of new pages.
GATHER_TOKENS = 4096

# A sequence's row of the flat batch, and its span.
_Member = tuple[int, SequenceSpan]


@dataclass(frozen=True)
class DecodeGroup:
    """Sequences of about the same reach, padded to the longest: what all tables of one window share.

        gathered    | . . # # | # # # # | # # . . | p p p p |      # attended to
                      lead                  stale   padding

    spans, needed:  its sequences, and the numbers of the blocks that each gathers
    token_rows:     their rows in the flat batch
    bias:           [sequences, 1, 1, gathered], 0 for what is attended to and -inf for the rest
    stale_rows:     rows of the gathered copy, seen as [-1, head_dim], that are behind a sequence's end in its last
                    block. They are zeroed: the bias does not stop a NaN that somebody else left there, 0 * NaN is NaN
    """

    spans: list[SequenceSpan]
    needed: list[range]
    token_rows: torch.Tensor
    bias: torch.Tensor
    stale_rows: torch.Tensor

    def block_ids(self, table: int) -> list[list[int]]:
        """What it gathers of a table, [sequences, blocks].

        A short sequence is padded with its first block: written to its end where there is a second one, and there is,
        as a group's sequences have more than half of the longest one's blocks.
        """
        width = max(map(len, self.needed))
        rows = [span.block_ids(table, numbers) for span, numbers in zip(self.spans, self.needed, strict=True)]
        return [ids + ids[:1] * (width - len(ids)) for ids in rows]

    def attend(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, block_rows: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """These sequences' rows of query [tokens, query_heads, head_dim], attended: [sequences, …, …]."""
        _, query_heads, head_dim = query.shape
        kv_heads = keys.shape[1]
        # The query heads of one KV head stand where several tokens would: K and V are not repeated.
        grouped = query[self.token_rows].view(-1, kv_heads, query_heads // kv_heads, head_dim)
        attended = scaled_dot_product_attention(
            grouped, self._own(keys, block_rows), self._own(values, block_rows), attn_mask=self.bias, scale=scale
        )
        return attended.reshape(-1, query_heads, head_dim)

    def _own(self, pool_side: torch.Tensor, block_rows: torch.Tensor) -> torch.Tensor:
        dense = gather(pool_side, block_rows)
        dense.view(-1, dense.shape[-1]).index_fill_(0, self.stale_rows, 0.0)
        return dense


def decode_groups(members: Sequence[_Member], table: TableLayout, pool: KVPool) -> list[DecodeGroup]:
    """Groups for the tables of this one's window: sequences of as many blocks, up to a power of two, as few tokens
    as GATHER_TOKENS together, or one."""
    block_size = pool.layout.block_size
    classes: dict[int, list[tuple[int, SequenceSpan, range]]] = {}
    for start, span in members:
        needed = span.needed_blocks(table, block_size)
        classes.setdefault((len(needed) - 1).bit_length(), []).append((start, span, needed))
    groups = []
    for alike in classes.values():
        alike.sort(key=lambda member: len(member[2]), reverse=True)
        while alike:
            fitting = max(1, GATHER_TOKENS // (len(alike[0][2]) * block_size))
            groups.append(_group(alike[:fitting], table, pool))
            del alike[:fitting]
    return groups


def _group(members: list[tuple[int, SequenceSpan, range]], table: TableLayout, pool: KVPool) -> DecodeGroup:
    device, block_size, heads = pool.storage.device, pool.layout.block_size, pool.kv_heads
    gathered = max(len(needed) for _, _, needed in members) * block_size

    def column(tokens: list[int]) -> torch.Tensor:
        """Places in the gathered copy, [sequences, 1], of tokens of each sequence."""
        offsets = [token - needed.start * block_size for token, (_, _, needed) in zip(tokens, members, strict=True)]
        return torch.tensor(offsets, device=device)[:, None]

    first = column([table.first_needed(span.past_tokens) for _, span, _ in members])
    end = column([span.total_tokens for _, span, _ in members])
    place = torch.arange(gathered, device=device)
    bias = torch.zeros(len(members), gathered, dtype=dense_dtype(pool), device=device)
    bias.masked_fill_((place < first) | (place >= end), float("-inf"))
    stale = (place >= end) & (place < column([needed.stop * block_size for _, _, needed in members]))
    return DecodeGroup(
        spans=[span for _, span, _ in members],
        needed=[needed for _, _, needed in members],
        token_rows=torch.tensor([start for start, _, _ in members], device=device),
        bias=bias[:, None, None],
        stale_rows=stale[:, None].expand(-1, heads, -1).flatten().nonzero().flatten(),
    )
