"""What the planner says fits, the engine holds: nothing is refused, preempted or left waiting."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kvtide_sizing.formats import Precision, layer_formats
from kvtide_sizing.memory.kv import KvLayout, kv_layout
from kvtide_sizing.shape import LayerShape, ModelShape
from tests.worker.engine.scheduling import Bench


@st.composite
def planned_layouts(draw: st.DrawFn) -> KvLayout:
    """The planner's layout of layers with and without windows, in any order and precision."""
    windows = draw(st.lists(st.sampled_from([None, 1, 7, 16, 40, 500]), min_size=4, max_size=12))
    precision = draw(st.sampled_from([Precision.BF16, Precision.INT8, Precision.MIXED, Precision.INT4]))
    shape = ModelShape(
        name="some",
        architecture="some",
        layers=tuple(LayerShape(2, 8, 8, window) for window in windows),
        query_heads=2,
        hidden_size=16,
        intermediate_size=16,
        vocab_size=16,
        max_context_tokens=400,
        tied_embeddings=True,
        weights=(),
    )
    block_size = draw(st.sampled_from([4, 16]))
    return kv_layout(shape, layer_formats(shape, precision), block_size, draw(st.integers(8, 64)))


def everybody_runs(bench: Bench) -> None:
    """Nobody waits for blocks. A step may be too small for a piece of each prompt, but not for the first one's."""
    some = bool(bench.requests)
    assert bool(bench.step()) == some
    assert not bench.scheduler.waiting


@settings(max_examples=60, deadline=None)
@given(
    layout=planned_layouts(),
    sequences=st.integers(1, 8),
    context=st.integers(2, 90),
    data=st.data(),
)
def test_planned_sequences_run_together(layout: KvLayout, sequences: int, context: int, data: st.DataObject) -> None:
    """As many sequences of the whole context as `KvLayout.sequences` says, whenever they come."""
    num_blocks = layout.required_blocks(sequences, context)
    assert layout.sequences(num_blocks, context) == sequences
    bench = Bench(num_blocks=num_blocks, layout=layout, batch_limit=sequences)
    for index in range(sequences):
        output = data.draw(st.integers(1, context - 1))
        bench.add(str(index), prompt=context - output, max_tokens=output)
        for _ in range(data.draw(st.integers(0, 3))):
            everybody_runs(bench)
    while bench.requests:
        everybody_runs(bench)
    assert bench.scheduler.preemptions == 0
    assert bench.blocks.free_blocks == num_blocks
