"""The engine's decodes by real graph plans, interpreted: a graph is replayed by running what was recorded again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kvtide_kernels.triton.attention import TritonAttention
from kvtide_worker.engine.decode_graphs import DecodeGraphs
from kvtide_worker.engine.engine import Engine
from tests.worker.engine.harness import generate, load
from tests.worker.models.tiny import save_tiny_llama

PROMPTS = [[7, 8, 9], list(range(20, 60)), [300]]


class Again:
    """Runs what was recorded."""

    replayed = 0

    def record(self, run: Callable[[], None]) -> Callable[[], None]:
        run()

        def replay() -> None:
            self.replayed += 1
            run()

        return replay

    def used_bytes(self) -> int:
        return 0


def interpreted(folder: Path, precision: str) -> Engine:
    engine = load(folder, dtype="auto", precision=precision, num_blocks=40, max_context=80, batch_limit=4)
    pool, config = engine._pool, engine._model.config
    # What no sequence holds is NaN: a padded row that is written, or read, is seen.
    pool.storage.fill_(255)
    engine._attention = TritonAttention(pool, query_heads=config.query_heads, scale=config.attention_scale, programs=8)
    return engine


@pytest.mark.parametrize("precision", [pytest.param("BF16", marks=pytest.mark.slow), "INT8"])
def test_tokens_are_those_without_graphs(precision: str, tmp_path: Path) -> None:
    save_tiny_llama(tmp_path, head_dim=64, initializer_range=0.15)
    plain, graphed, recorder = interpreted(tmp_path, precision), interpreted(tmp_path, precision), Again()
    layout = graphed._pool.layout
    graphs = DecodeGraphs(
        graphed._model,
        recorder,
        torch.device("cpu"),
        torch.bfloat16,
        layout=layout,
        max_context_tokens=80,
        most_sequences=4,
        most_bytes=1,
    )
    graphs.record(graphed._attention, layout=layout, batch_limit=4)
    assert bool((graphed._pool.storage == 255).all())  # what is padded alone writes nothing
    graphed._graphs = graphs
    assert generate(graphed, PROMPTS, 5) == generate(plain, PROMPTS, 5)
    assert recorder.replayed == 4
