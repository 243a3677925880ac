"""Tensors in pieces: what is converted on the way from the file to its place must not need the place twice."""

from __future__ import annotations

import math
from collections.abc import Iterator

# 4 MiB in float32: long enough that Python's part does not count, and nothing beside any model.
CHUNK_ELEMENTS = 1 << 20


def row_chunks(shape: tuple[int, ...], together: int = 1) -> Iterator[slice]:
    """Slices of the first dimension, of CHUNK_ELEMENTS at most; rows that belong `together` are never parted."""
    group_elements = together * math.prod(shape[1:])
    rows = together * max(1, CHUNK_ELEMENTS // group_elements)
    for start in range(0, shape[0], rows):
        yield slice(start, min(start + rows, shape[0]))
