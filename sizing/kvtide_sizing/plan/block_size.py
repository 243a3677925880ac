"""The block size: what a sequence's blocks leave empty, against how long its table gets and how much is shared."""

from __future__ import annotations

from collections.abc import Sequence

from kvtide_sizing.formats import RECENT_PARTS, RECENT_TOKENS, LayerFormat
from kvtide_sizing.plan.workload import BLOCK_SIZES, Policy, Profile, Workload
from kvtide_sizing.shape import ModelShape

# An expected sequence may leave one part in so many of its blocks empty, on average.
_EMPTY_PARTS = 20

# Chats share prompts, and only whole blocks are shared; a head's tokens in one block are still 64 rows side by side.
_LARGEST_FOR_CHAT = 64

# A window is held in whole blocks and one more; a block this small against the window keeps that one cheap.
_WINDOW_PARTS = 4


def choose_block_size(shape: ModelShape, formats: Sequence[LayerFormat], workload: Workload, policy: Policy) -> int:
    """The asked one, or the largest that wastes little of the expected sequence and of the narrowest window.

    formats: of the layers. Recent tokens have blocks of their own, of which large ones are not filled.
    """
    if policy.block_size_tokens is not None:
        return policy.block_size_tokens
    longest = min(workload.max_context_tokens or shape.max_context_tokens, shape.max_context_tokens)
    windows = [layer.window for layer in shape.layers if layer.window is not None]
    half_empty = min(workload.mean_sequence_tokens, longest) * 2 // _EMPTY_PARTS
    recent = any(stored.keeps_recent for stored in formats)
    most = min(
        _LARGEST_FOR_CHAT if workload.profile is Profile.CHAT else BLOCK_SIZES[-1],
        min(windows, default=BLOCK_SIZES[-1] * _WINDOW_PARTS) // _WINDOW_PARTS,
    )
    fitting = (
        size for size in BLOCK_SIZES if size <= most and size + 2 * (_unfilled(size) if recent else 0) <= half_empty
    )
    return max(fitting, default=BLOCK_SIZES[0])


def _unfilled(block_size: int) -> int:
    """Tokens' room that recent tokens leave of their blocks."""
    return -(RECENT_TOKENS * RECENT_PARTS) % block_size


def tail_waste(block_size: int, sequence_tokens: int) -> float:
    """The part of an expected sequence's blocks that is empty on average: half of the last one."""
    return block_size / (2 * sequence_tokens + block_size)
