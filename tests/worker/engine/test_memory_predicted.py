"""Predicted against measured, with real weights: weights, pool, and the peak of a step's tensors."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from devcluster.model import gemma3_270m_gguf, smollm2_gguf
from kvtide_kernels.attention import PagedAttention
from kvtide_kernels.backends import attention_over
from kvtide_kernels.cpu.layers import INSTRUCTION_SET
from kvtide_kernels.cpu.library import library
from kvtide_kernels.key_basis import KeyBasis
from kvtide_kernels.pool import KVPool
from kvtide_sizing.devices.device import DeviceKind
from kvtide_sizing.formats import Precision, layer_formats
from kvtide_sizing.memory.activations import step_bytes
from kvtide_sizing.memory.kv import kv_layout
from kvtide_sizing.memory.weights import weights_bytes
from kvtide_sizing.models.inspect import inspect_model
from kvtide_sizing.shape import ModelShape
from kvtide_worker.engine.engine import Engine
from kvtide_worker.engine.memory import MemoryMeter, Usage
from kvtide_worker.engine.messages import AddRequest, SamplingParams
from kvtide_worker.engine.peak import AllocationPeak
from kvtide_worker.engine.worst_step import WorstStep
from kvtide_worker.models.checkpoint import open_checkpoint
from kvtide_worker.models.model import Model, load_model

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
STEP_TOKENS = 512


class Subject:
    """A model with its weights, which the cases share."""

    def __init__(self, path: Path) -> None:
        self.shape: ModelShape = inspect_model(path)
        self.model: Model = load_model(open_checkpoint(path), dtype=torch.bfloat16, device=CPU)

    def pool(self, precision: str, block_size: int, context: int, sequences: int) -> KVPool:
        formats = layer_formats(self.shape, Precision(precision))
        layout = kv_layout(self.shape, formats, block_size, STEP_TOKENS)
        return KVPool.allocate(
            layout,
            formats,
            num_blocks=layout.required_blocks(sequences, context),
            kv_heads=self.model.config.kv_heads,
            head_dim=self.model.config.head_dim,
            device=CPU,
        )

    def attention(self, pool: KVPool) -> PagedAttention:
        """The one that serves. What a basis holds takes no memory: theirs change nothing."""
        config = self.model.config
        same = torch.eye(config.head_dim).repeat(config.kv_heads, 1, 1)
        basis = KeyBasis(same, same, torch.zeros(config.kv_heads, config.head_dim))
        bases = {index: basis for index, layer in enumerate(pool.layers) if layer.format.has_key_basis}
        return attention_over(pool, query_heads=config.query_heads, scale=config.attention_scale, bases=bases)

    def predicted(self, pool: KVPool, context: int, batch: int) -> int:
        kernels = library().instruction_set == INSTRUCTION_SET
        return step_bytes(
            self.shape, DeviceKind.CPU, pool.layout, context_tokens=context, batch=batch, layer_kernels=kernels
        )


@pytest.fixture(scope="module", params=[smollm2_gguf, gemma3_270m_gguf], ids=["smollm2", "gemma3-270m"])
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    fetch: Callable[[], Path] = request.param
    # Each thread has scores and sums of its own, of which the prediction counts four.
    threads = torch.get_num_threads()
    torch.set_num_threads(min(2, threads))
    yield Subject(fetch())
    torch.set_num_threads(threads)


def test_weights(subject: Subject) -> None:
    assert subject.model.weights_bytes == pytest.approx(weights_bytes(subject.shape), rel=0.01)


@pytest.mark.parametrize(
    ("precision", "context", "batch", "block_size"),
    [
        ("BF16", 2048, 64, 64), ("INT4", 8192, 16, 16), ("INT8", 8192, 1, 256), ("Mixed", 2048, 8, 16),
        ("K8V4", 600, 64, 32), ("BF16", 256, 16, 16), ("INT4", 512, 4, 256), ("K8V4", 64, 3, 16),
    ],
)  # fmt: skip
def test_a_full_step(subject: Subject, precision: str, context: int, batch: int, block_size: int) -> None:
    """Never below what is measured, and at most a tenth above."""
    pool = subject.pool(precision, block_size, context, sequences=1)
    assert pool.nbytes == pool.layout.required_blocks(1, context) * pool.layout.block_bytes
    worst = WorstStep(subject.model, subject.attention(pool), pool, max_context_tokens=context, batch=batch)
    measured = worst.measure_bytes()
    assert measured <= subject.predicted(pool, context, batch) <= 1.1 * measured


@pytest.mark.parametrize("precision", ["BF16", "INT4"])
def test_no_step_of_a_mixed_load_takes_more(subject: Subject, precision: str) -> None:
    """Prompts of 1 to 1000 tokens come and go; every step is measured."""
    context, batch = 1024, 12
    pool = subject.pool(precision, 32, context, sequences=6)
    engine = Engine(
        model=subject.model,
        pool=pool,
        attention=subject.attention(pool),
        meter=MemoryMeter(lambda: Usage(0, 0, 0), weights_bytes=0, kv_pool_bytes=0),
        max_context_tokens=context,
        max_batch_limit=batch,
    )
    random_lengths = random.Random(5)
    for index in range(40):
        prompt, output = random_lengths.choice([1, 20, 300, 1000]), random_lengths.choice([1, 5, 12])
        sampling = SamplingParams(output, temperature=index % 2, top_p=1 - index % 3 / 1e6, top_k=index % 5, seed=index)
        engine.add(AddRequest(str(index), [1 + index] * prompt, sampling))
    peaks = []
    while engine.has_work:
        with AllocationPeak(CPU) as peak:
            engine.step()
        peaks.append(peak.peak_bytes)
    assert len(peaks) >= 20
    predicted = subject.predicted(pool, context, batch)
    assert predicted / 2 < max(peaks) <= predicted
