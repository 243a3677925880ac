"""Blocks and tables: how layers share them, and how many blocks a sequence takes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtide_sizing.formats import BF16, INT4, INT8, LayerFormat, Precision, bytes_per_token, layer_formats
from kvtide_sizing.memory.kv import KvLayout, kv_layout
from kvtide_sizing.models import catalog
from kvtide_sizing.shape import LayerShape, ModelShape
from tests.sizing.shapes import shape_of
from tests.sizing.strategies import shapes

FULL, WINDOW = LayerShape(1, 256, 256), LayerShape(1, 256, 256, window=512)


def layout_of(shape: ModelShape, precision: Precision = Precision.BF16, block_size: int = 64) -> KvLayout:
    return kv_layout(shape, layer_formats(shape, precision), block_size, step_tokens=512)


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
    layout = layout_of(shape, Precision.INT4, block_size)
    for length in {1, tokens, max(1, tokens - 1), tokens // 2 + 1}:
        held = sum(
            # what the token at position length - 1 sees is held when it is computed, and the last 32 tokens beside
            -(-length // block_size) - table.first_needed(length - 1) // block_size + -(-32 // (block_size // 4))
            for table in layout.tables
        )
        assert held <= layout.sequence_blocks(length)


@given(shapes(), st.sampled_from(list(Precision)), st.integers(1, 20_000), st.integers(1, 100))
def test_required_blocks_are_the_fewest(shape: ModelShape, precision: Precision, tokens: int, sequences: int) -> None:
    layout = layout_of(shape, precision)
    needed = layout.required_blocks(sequences, tokens)
    assert layout.sequences(needed, tokens) == sequences
    assert layout.sequences(needed - 1, tokens) < sequences


@pytest.mark.parametrize(
    ("block_size", "precision", "blocks"),
    [
        # A block of n tokens of INT4 has n · d / 2 bytes and more of a head's keys, and a key in BF16 2 · d: there is
        # place for n / 4 of them, and the last 32 tokens take 128 tokens' room.
        (16, Precision.INT4, 8),
        (64, Precision.INT4, 2),
        (64, Precision.K8V4, 2),
        (64, Precision.MIXED, 2),
        (128, Precision.INT4, 1),
        (256, Precision.INT4, 1),
        (64, Precision.INT8, 0),
        (64, Precision.BF16, 0),
    ],
)
def test_recent_tokens_have_blocks_of_their_own(block_size: int, precision: Precision, blocks: int) -> None:
    layout = layout_of(catalog.builtin("smollm2-135m"), precision, block_size)
    assert layout.recent_blocks == blocks
    assert layout.sequence_blocks(0) == 0
    assert layout.sequence_blocks(1) == 1 + blocks
    assert layout.sequence_blocks(2048) == 2048 // block_size + blocks
    # 100 blocks are so many sequences of the expected 768 tokens, half of whose last blocks are empty
    assert layout.expected_sequences(100, 768) == int(100 // (768 / block_size + 0.5 + blocks))


def test_recent_tokens_are_in_every_table() -> None:
    """Gemma 3 270M has six, of three layers each, where a token in INT4 has 2 · (128 + 4) bytes."""
    layout = layout_of(catalog.builtin("gemma-3-270m"), Precision.INT4)
    assert layout.sequence_blocks(577) == 10 + 5 * 9 + 6 * 2
    assert layout.block_bytes == 64 * 3 * 264


def test_tables_are_dealt_the_wide_layers_in_turn() -> None:
    """Of two windows' layers two each are wide: the two slots' sides are as wide as the widest in them."""
    shape = shape_of((WINDOW, FULL, WINDOW, FULL, WINDOW, WINDOW))  # 4 and 2: three tables of two
    wide, narrow = LayerFormat(BF16, INT8), LayerFormat(INT4, INT4)
    layout = kv_layout(shape, [narrow, narrow, wide, wide, narrow, wide], 64, step_tokens=512)
    assert [table.layers for table in layout.tables] == [(2, 0), (5, 4), (3, 1)]
    # a wide layer's token has 512 + 258 bytes, a narrow one's 132 + 132
    assert layout.block_bytes == 64 * (770 + 264)


def test_a_slots_sides_are_each_as_wide_as_the_widest_in_it() -> None:
    shape = shape_of((WINDOW, FULL))
    layout = kv_layout(shape, [LayerFormat(BF16, INT4), LayerFormat(INT4, BF16)], 64, step_tokens=512)
    assert layout.block_bytes == 64 * (512 + 512)


@given(shapes(), st.sampled_from(list(Precision)))
def test_blocks_hold_all_layers_whole(shape: ModelShape, precision: Precision) -> None:
    layout = layout_of(shape, precision)
    assert layout.block_bytes * len(layout.tables) >= 64 * bytes_per_token(shape, precision)
    if precision is not Precision.MIXED:
        assert layout.block_bytes * len(layout.tables) == 64 * bytes_per_token(shape, precision)
