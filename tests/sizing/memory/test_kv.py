"""Blocks and tables: how layers share them, and how many blocks a sequence takes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtide_sizing.formats import Precision, bytes_per_token
from kvtide_sizing.memory.kv import KvLayout, kv_layout
from kvtide_sizing.models import catalog
from kvtide_sizing.shape import LayerShape, ModelShape
from tests.sizing.shapes import shape_of
from tests.sizing.strategies import shapes

FULL, WINDOW = LayerShape(1, 256, 256), LayerShape(1, 256, 256, window=512)


def layout_of(shape: ModelShape, precision: Precision = Precision.BF16, block_size: int = 64) -> KvLayout:
    return kv_layout(shape, precision, block_size, step_tokens=512)


@pytest.mark.parametrize(
    ("layers", "tables", "layers_of_each"),
    [
        ((FULL,) * 6, 1, 6),
        ((WINDOW,) * 6, 1, 6),
        ((WINDOW,) * 5 + (FULL,), 6, 1),
        (((WINDOW,) * 5 + (FULL,)) * 3, 6, 3),  # Gemma 3 270M: 15 and 3
        ((WINDOW, FULL) * 12, 2, 12),  # gpt-oss-20b: 12 and 12
        ((WINDOW,) * 4 + (FULL,) * 6, 5, 2),
    ],
)
def test_layers_of_one_window_share_tables_of_one_size(
    layers: tuple[LayerShape, ...], tables: int, layers_of_each: int
) -> None:
    layout = layout_of(shape_of(layers))
    assert [len(table.layers) for table in layout.tables] == [layers_of_each] * tables
    assert layout.block_bytes == 64 * layers_of_each * 512 * 2
    assert sorted(layer for table in layout.tables for layer in table.layers) == list(range(len(layers)))
    assert all(layers[layer].window == table.window for table in layout.tables for layer in table.layers)


def test_a_window_as_long_as_the_context_is_none() -> None:
    layers = (LayerShape(1, 64, 64, window=4096), LayerShape(1, 64, 64))
    assert len(layout_of(shape_of(layers, max_context_tokens=4096)).tables) == 1
    assert len(layout_of(shape_of(layers, max_context_tokens=4097)).tables) == 2


@pytest.mark.parametrize(
    ("tokens", "blocks"),
    [
        (0, 0),
        (1, 6),
        (64, 6),
        (65, 12),
        (512, 8 * 6),
        # 512 tokens in blocks of 64 lie in nine of them where they do not begin with a block
        (577, 10 + 5 * 9),
        (32_768, 512 + 5 * 9),
    ],
)
def test_a_sequence_of_gemma_3_270m(tokens: int, blocks: int) -> None:
    assert layout_of(catalog.builtin("gemma-3-270m")).sequence_blocks(tokens) == blocks


def test_windows_save_most_of_a_long_sequence_of_gemma_3_270m() -> None:
    shape = catalog.builtin("gemma-3-270m")
    layout = layout_of(shape)
    whole = 32_768 * bytes_per_token(shape, Precision.BF16)  # 604 MB
    assert whole == 603_979_776
    # 3 full layers of 32,768 tokens, 15 of nine blocks of 64, 1024 bytes each
    assert layout.sequence_blocks(32_768) * layout.block_bytes == (3 * 32_768 + 15 * 9 * 64) * 1024 == 109_510_656


@given(shapes(), st.integers(1, 20_000), st.sampled_from([16, 64, 256]))
def test_a_table_never_holds_more_than_the_layout_says(shape: ModelShape, tokens: int, block_size: int) -> None:
    layout = layout_of(shape, block_size=block_size)
    for length in {1, tokens, max(1, tokens - 1), tokens // 2 + 1}:
        held = sum(
            # what the token at position length - 1 sees is held when it is computed
            -(-length // block_size) - table.first_needed(length - 1) // block_size
            for table in layout.tables
        )
        assert held <= layout.sequence_blocks(length)


@given(shapes(), st.integers(1, 20_000), st.integers(1, 100))
def test_required_blocks_are_the_fewest(shape: ModelShape, tokens: int, sequences: int) -> None:
    layout = layout_of(shape)
    needed = layout.required_blocks(sequences, tokens)
    assert layout.sequences(needed, tokens) == sequences
    assert layout.sequences(needed - 1, tokens) < sequences


@given(shapes(), st.sampled_from(list(Precision)))
def test_blocks_hold_all_layers_whole(shape: ModelShape, precision: Precision) -> None:
    layout = layout_of(shape, precision)
    assert layout.block_bytes * len(layout.tables) >= 64 * bytes_per_token(shape, precision)
    if precision is not Precision.MIXED:
        assert layout.block_bytes * len(layout.tables) == 64 * bytes_per_token(shape, precision)
