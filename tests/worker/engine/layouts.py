"""Layouts for tests that have no model: what matters is which windows there are."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from kvtide_sizing.memory.kv import KvLayout, TableLayout


def layout_of(
    windows: Sequence[int | None], *, block_size: int = 4, step_tokens: int = 16, recent: int = 0
) -> KvLayout:
    """A layout with one table of one layer for each window; nobody counts its bytes."""
    tables = tuple(TableLayout((layer,), window) for layer, window in enumerate(windows))
    return KvLayout(block_size, block_bytes=0, tables=tables, step_tokens=step_tokens, recent=recent)


windows = st.lists(st.none() | st.integers(1, 20), min_size=1, max_size=4)
layouts = st.builds(layout_of, windows, block_size=st.integers(1, 6), step_tokens=st.integers(4, 16)) | st.builds(
    # A quarter of a block's tokens are recent ones: one or two in a block of 4 to 8, up to three blocks.
    layout_of,
    windows,
    block_size=st.integers(4, 8),
    step_tokens=st.integers(4, 16),
    recent=st.integers(1, 3),
)
