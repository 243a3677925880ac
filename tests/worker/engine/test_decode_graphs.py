"""Decodes by graphs, which are replayed here by calling what was recorded: buffers, padding and results are real."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from kvtide_kernels.attention import AttentionStep, PagedAttention, SequenceSpan
from kvtide_worker.engine import load as loading
from kvtide_worker.engine.config import EngineConfig
from kvtide_worker.engine.decode_graphs import DecodeGraphs
from kvtide_worker.engine.engine import Engine
from kvtide_worker.engine.messages import AddRequest
from tests.worker.engine.harness import generate, greedy, load, run
from tests.worker.engine.test_engine import PROMPTS
from tests.worker.models.tiny import save_tiny

CPU = torch.device("cpu")
MOST_BYTES = 1000


class Refilled:
    """A step that lies still: rows behind its sequences come back as what must not reach any other row."""

    def __init__(self, attention: PagedAttention, sequences: int, tokens: int) -> None:
        self._attention, self._sequences, self._tokens = attention, sequences, tokens
        self._step: AttentionStep | None = None
        self._count = 0

    def refill(self, spans: Sequence[SequenceSpan]) -> None:
        assert len(spans) <= self._sequences
        assert all(span.new_tokens == 1 and span.total_tokens <= self._tokens for span in spans)
        self._count = len(spans)
        self._step = self._attention.plan(spans) if spans else None

    def run(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        assert len(query) == len(key) == len(value) == self._sequences
        out = torch.full(query.shape, torch.nan, dtype=query.dtype)
        if self._step is not None:
            count = self._count
            out[:count] = self._step.run(layer, query[:count], key[:count], value[:count])
        return out


@dataclass
class Recordable:
    """Attention that counts what it runs without a graph."""

    attention: PagedAttention
    eager: list[int] = field(default_factory=list)

    def plan(self, spans: Sequence[SequenceSpan]) -> AttentionStep:
        self.eager.append(max(span.new_tokens for span in spans))
        return self.attention.plan(spans)

    def graph_plan(self, *, sequences: int, tokens: int) -> Refilled:
        return Refilled(self.attention, sequences, tokens)


@dataclass
class Calls:
    """A recorder that calls again what it was given. fails_at: recordings before one that is refused."""

    each_bytes: int = 0
    fails_at: int | None = None
    recorded: int = 0
    replayed: int = 0

    def record(self, run: Callable[[], None]) -> Callable[[], None]:
        if self.recorded == self.fails_at:
            raise torch.OutOfMemoryError("no memory for a graph")
        run()
        self.recorded += 1

        def replay() -> None:
            self.replayed += 1
            run()

        return replay

    def used_bytes(self) -> int:
        return self.recorded * self.each_bytes


def with_graphs(
    engine: Engine, recorder: Calls, limit: int = 16, max_context: int = 256, dtype: torch.dtype = torch.float32
) -> Recordable:
    """Graphs for an engine that has none, as a CPU has."""
    attention = Recordable(engine._attention)
    layout = engine._pool.layout
    graphs = DecodeGraphs(
        engine._model,
        recorder,
        CPU,
        dtype,
        layout=layout,
        max_context_tokens=max_context,
        most_sequences=limit,
        most_bytes=MOST_BYTES,
    )
    graphs.record(attention, layout=layout, batch_limit=limit)
    engine._attention, engine._graphs = attention, graphs
    return attention


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    save_tiny(folder, request.param)
    return folder


@pytest.fixture(scope="module")
def expected(model: Path) -> list[list[int]]:
    """Without graphs."""
    return generate(load(model, num_blocks=300), PROMPTS, 24)


@pytest.mark.parametrize("limit", [16, 5, 3])
def test_tokens_are_those_without_graphs(model: Path, expected: list[list[int]], limit: int) -> None:
    """Five sequences are padded to eight, fit into five, or run without a graph that has room for three."""
    engine, recorder = load(model, num_blocks=300), Calls()
    attention = with_graphs(engine, recorder, limit)
    assert generate(engine, PROMPTS, 24) == expected
    # Prompts are computed in one step, and give the first token of each.
    assert recorder.replayed == (0 if limit == 3 else 23)
    assert len(attention.eager) == 24 - recorder.replayed
    for prompt, tokens in zip(PROMPTS, expected, strict=True):
        assert generate(engine, [prompt], 24) == [tokens]


def test_chunks_and_scored_prompts_run_without(model: Path) -> None:
    engine, recorder = load(model), Calls()
    attention = with_graphs(engine, recorder)
    engine.add(AddRequest("scored", [5, 6], greedy(1, prompt_logprobs=1)))
    (output,) = run(engine)
    assert output.prompt_logprobs is not None
    assert (attention.eager, recorder.replayed) == ([2], 0)


def test_what_is_longer_than_every_graph_runs_without(model: Path) -> None:
    """Eight prompt tokens and 12 more: the last four steps have 17 to 20 tokens, and a graph room for 16."""
    plain, graphed, recorder = load(model), load(model), Calls()
    attention = with_graphs(graphed, recorder, max_context=16)
    prompt = list(range(50, 58))
    assert generate(graphed, [prompt], 13) == generate(plain, [prompt], 13)
    assert recorder.replayed == 8
    assert attention.eager == [8, 1, 1, 1, 1]


def test_recording_ends_where_the_memory_for_it_does(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Buckets of 1, 2, 4, 8 and 16, the largest first; four of 300 bytes are beyond 1,000."""
    engine = load(model)
    with caplog.at_level(logging.WARNING):
        with_graphs(engine, Calls(each_bytes=300))
    assert engine._graphs is not None
    assert [bucket.sequences for bucket in engine._graphs.buckets] == [2, 4, 8, 16]
    assert "graphs take 1200 bytes: no more are recorded" in caplog.text


def test_what_cannot_be_recorded_runs_without(
    model: Path, expected: list[list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    engine, recorder = load(model, num_blocks=300), Calls(fails_at=1)
    with caplog.at_level(logging.WARNING):
        with_graphs(engine, recorder)
    assert "decodes of batches of 8 cannot be recorded: no memory for a graph" in caplog.text
    assert generate(engine, PROMPTS, 24) == expected
    assert recorder.replayed == 23  # padded to 16, the only one


def test_attention_that_cannot_be_recorded_has_no_graphs(model: Path) -> None:
    engine, recorder = load(model), Calls()
    with_graphs(engine, recorder)
    graphs: Any = engine._graphs
    graphs.record(engine._attention.attention, layout=engine._pool.layout, batch_limit=16)  # type: ignore[attr-defined]
    assert graphs.buckets == ()
    generate(engine, PROMPTS[:2], 3)
    assert recorder.replayed == 0


def test_progress_is_told_before_each_graph(model: Path) -> None:
    engine = load(model)
    with_graphs(engine, Calls())
    told: list[str] = []
    graphs: Any = engine._graphs
    graphs.record(engine._attention, layout=engine._pool.layout, batch_limit=3, progress=told.append)
    assert told == [
        "recording decode steps (1 of 3: batches of 3)",
        "recording decode steps (2 of 3: batches of 2)",
        "recording decode steps (3 of 3: batches of 1)",
    ]


def test_a_pool_that_is_reencoded_has_graphs_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_tiny(tmp_path, "llama", head_dim=64, initializer_range=0.15)
    plain, graphed = (load(tmp_path, dtype="auto", num_blocks=300) for _ in range(2))
    recorder = Calls()
    with_graphs(graphed, recorder, dtype=torch.bfloat16)
    formats: Any = graphed._formats
    attention_over = formats.attention
    monkeypatch.setattr(formats, "attention", lambda pool: Recordable(attention_over(pool)))
    tokens: list[list[tuple[str, list[int]]]] = []
    for engine in (plain, graphed):
        for index, prompt in enumerate(PROMPTS):
            engine.add(AddRequest(str(index), prompt, greedy(12)))
        outputs = [output for _ in range(6) for output in engine.step()]
        engine.reencode("INT8")
        outputs += run(engine)
        tokens.append([(output.request_id, output.token_ids) for output in outputs])
    assert tokens[0] == tokens[1]
    # Buckets of 1, 2, 4, 8 and 16, twice or, where more sequences may run now, up to their new number.
    assert graphed._graphs is not None
    assert recorder.recorded == 5 + len(graphed._graphs.buckets)
    assert recorder.replayed == 11


@pytest.mark.parametrize(
    ("options", "recorded"),
    [
        ({"device": "cuda"}, True),
        ({"device": "cuda", "enforce_eager": True}, False),
        ({"device": "cpu"}, False),
    ],
)
def test_graphs_are_recorded_on_a_gpu_that_may_have_them(
    model: Path, options: dict[str, Any], recorded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, made = load(model), Mock()
    monkeypatch.setattr(loading, "DecodeGraphs", made)
    monkeypatch.setattr("kvtide_worker.engine.cuda_recorder.CudaRecorder", Mock())
    choice = Mock(others={}, served=Mock(batch_limit=4))
    config = EngineConfig("file:///model", {}, **options)
    graphs = loading._graphs(config, engine._model, Recordable(engine._attention), choice, Mock(), lambda stage: None)
    assert (graphs is made.return_value, made.called) == (recorded, recorded)
