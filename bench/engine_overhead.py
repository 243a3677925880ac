"""What a decode step costs beside the model: `python -m bench.engine_overhead [--vocab N] [--steps N] [--profile N]`.

The model is a stub whose logits lie there already; everything else is the engine's own: scheduling, block tables, the
kernels' plan of the step, greedy sampling, outputs, the state, and both packed for the server. Every sequence has a
context of CONTEXT tokens. Times are the processor's for the one thread that there is: others may use the machine. A
number is the median of all steps, and beside it the best tenth.
"""

from __future__ import annotations

import cProfile
import pstats
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import click
import msgspec
import torch
from rich.console import Console
from rich.table import Table

from kvtide_kernels.cpu.attention import CpuAttention
from kvtide_kernels.pool import KVPool
from kvtide_sizing.formats import BF16, LayerFormat
from kvtide_sizing.memory.kv import KvLayout, TableLayout
from kvtide_worker.engine.engine import Engine
from kvtide_worker.engine.memory import MemoryMeter, Usage
from kvtide_worker.engine.messages import AddRequest, SamplingParams, StepOutputs

CONTEXT, BLOCK_SIZE, HEAD_DIM, STEP_TOKENS = 1024, 64, 64, 512
GOALS_MS = {1: None, 16: 1.0, 64: None, 256: 5.0}
PARTS = ("schedule", "plan", "sample", "state")


@dataclass
class Stub:
    """A model of one layer that is never run. logits [rows, vocab_size]"""

    logits: torch.Tensor
    config: Any = field(default_factory=lambda: SimpleNamespace(eos_token_ids=(), vocab_size=0))

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, step: Any, rows: torch.Tensor) -> torch.Tensor:
        """The first rows of what is there."""
        return self.logits[: len(rows)]


class Clock:
    """Adds up how long some calls take, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def watch(self, owner: Any, method: str, name: str) -> None:
        """Count a method's time under this name."""
        called: Callable[..., Any] = getattr(owner, method)

        def timed(*args: Any, **options: Any) -> Any:
            started = time.thread_time()
            try:
                return called(*args, **options)
            finally:
                self.seconds[name] = self.seconds.get(name, 0.0) + time.thread_time() - started

        setattr(owner, method, timed)


def engine_with(sequences: int, steps: int, vocab: int) -> Engine:
    """An engine in which so many sequences decode, for so many steps at least."""
    layout = KvLayout(BLOCK_SIZE, 4 * BLOCK_SIZE * HEAD_DIM, (TableLayout((0,), None),), STEP_TOKENS)
    blocks = sequences * (-(-(CONTEXT + steps) // BLOCK_SIZE) + 2)
    pool = KVPool.allocate(
        layout,
        [LayerFormat(BF16, BF16)],
        num_blocks=blocks,
        kv_heads=1,
        head_dim=HEAD_DIM,
        device=torch.device("cpu"),
    )
    model = Stub(torch.randn(sequences, vocab).bfloat16())
    model.config.vocab_size = vocab
    engine = Engine(
        model=model,  # type: ignore[arg-type]
        pool=pool,
        attention=CpuAttention(pool, scale=1.0),
        meter=MemoryMeter(lambda: Usage(0, 0, 1 << 30), weights_bytes=0, kv_pool_bytes=pool.nbytes),
        max_context_tokens=CONTEXT + 2 * steps,
        max_batch_limit=sequences,
    )
    sampling = SamplingParams(max_tokens=2 * steps, temperature=0.0, ignore_eos=True)
    for number in range(sequences):
        engine.add(AddRequest(str(number), [number % vocab, *range(CONTEXT - 1)], sampling))
    while engine.state().queued_prompt_tokens:
        engine.step()
    return engine


def measure(sequences: int, steps: int, vocab: int) -> tuple[list[float], dict[str, float]]:
    """Seconds of each step, and the seconds a step of each of its parts."""
    engine, clock, encoder = engine_with(sequences, 2 * steps, vocab), Clock(), msgspec.msgpack.Encoder()
    taken = [_step(engine, encoder) for _ in range(steps)]
    for owner, method, name in (
        (engine._scheduler, "schedule", "schedule"),
        (engine._attention, "plan", "plan"),
        (engine._sampler, "sample", "sample"),
        (engine, "state", "state"),
    ):
        clock.watch(owner, method, name)
    for _ in range(steps):
        _step(engine, encoder)
    return taken, {name: seconds / steps for name, seconds in clock.seconds.items()}


def _step(engine: Engine, encoder: msgspec.msgpack.Encoder) -> float:
    started = time.thread_time()
    outputs = engine.step()
    encoder.encode(StepOutputs(outputs, engine.state()))
    return time.thread_time() - started


@click.command()
@click.option("--vocab", default=1024, show_default=True, help="Logits of a row: reading them is sampling's time.")
@click.option("--steps", default=200, show_default=True)
@click.option("--profile", type=int, help="Print what a batch of so many spends its time on.")
def main(vocab: int, steps: int, profile: int | None) -> None:
    """Print the table, or a profile."""
    torch.set_num_threads(1)
    if profile:
        engine, encoder = engine_with(profile, 2 * steps, vocab), msgspec.msgpack.Encoder()
        with cProfile.Profile() as profiler:
            for _ in range(steps):
                _step(engine, encoder)
        pstats.Stats(profiler).sort_stats("tottime").print_stats(25)
        return
    table = Table("sequences", "median ms", "best tenth ms", *(f"{part} ms" for part in PARTS), "goal ms")
    for sequences, goal in GOALS_MS.items():
        taken, parts = measure(sequences, steps, vocab)
        best = sorted(taken)[steps // 10]
        numbers = (statistics.median(taken), best, *(parts[part] for part in PARTS))
        table.add_row(
            str(sequences), *(f"{1e3 * seconds:.2f}" for seconds in numbers), "" if goal is None else f"{goal}"
        )
    Console().print(table)


if __name__ == "__main__":
    main()
