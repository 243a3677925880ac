"""The pieces that tensors are converted in: all of a tensor, once, and little of it at a time."""

import pytest

from kvtide_worker.models.chunks import CHUNK_ELEMENTS, row_chunks


@pytest.mark.parametrize(
    ("shape", "together"),
    [
        ((262_144, 640), 1),
        ((2048, 2048), 256),
        ((640,), 1),
        ((3, 1000), 1),
        ((2_000_000,), 1),
        ((64, 1 << 19), 4),
    ],
)
def test_chunks_cover_all_rows_once(shape: tuple[int, ...], together: int) -> None:
    chunks = list(row_chunks(shape, together))
    assert [row for rows in chunks for row in range(rows.start, rows.stop)] == list(range(shape[0]))
    assert all(rows.start % together == 0 for rows in chunks)
    width = shape[1] if len(shape) == 2 else 1
    most = max((rows.stop - rows.start) * width for rows in chunks)
    assert most <= max(CHUNK_ELEMENTS, together * width)
