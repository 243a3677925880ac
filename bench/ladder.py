"""What each strategy adds, in one budget of KV memory: `python -m bench.ladder [--budget 64Mi] [--requests N]`.

    contiguous           every sequence reserves its longest, as engines without paging do; keys and values of all heads
    paged                blocks as they are needed
    + grouped heads      eight query heads share the keys and values of one
    + INT8               keys and values of one byte

A model of random weights (4 layers, 16 heads of 64, as a file of its own), the real engine, and one list of requests
of mixed lengths for all rungs. Of each: sequences at once while others wait, how much of the pool was theirs then, the
bytes that a sequence takes, and the output tokens a second, prefill included. Nothing here is computed from a formula.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import click
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from transformers import LlamaConfig, LlamaForCausalLM

from bench.rungs import GOALS, Outcome, Rung, mixed_requests, rungs
from kvtide_kernels.backends import attention_over
from kvtide_kernels.pool import KVPool
from kvtide_sizing.formats import Precision, layer_formats
from kvtide_sizing.memory.budget import STEP_TOKEN_BUDGET
from kvtide_sizing.memory.kv import kv_layout
from kvtide_sizing.models.inspect import inspect_model
from kvtide_sizing.quantity import format_bytes, parse_quantity
from kvtide_worker.engine.engine import Engine
from kvtide_worker.engine.memory import MemoryMeter, Usage
from kvtide_worker.engine.messages import AddRequest
from kvtide_worker.models.checkpoint import open_checkpoint
from kvtide_worker.models.model import load_model

LAYERS, HEADS, HEAD_DIM, VOCAB, CONTEXT, BLOCK_SIZE = 4, 16, 64, 4096, 1024, 16

RUNGS = rungs(HEADS, Precision.INT8)


def save_model(folder: Path, kv_heads: int) -> None:
    """A Llama of random weights, as a folder."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HEADS * HEAD_DIM,
        intermediate_size=2816,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=kv_heads,
        max_position_embeddings=CONTEXT,
    )
    LlamaForCausalLM(config).bfloat16().save_pretrained(folder)


def engine_for(folder: Path, rung: Rung, budget_bytes: int, most_sequences: int) -> Engine:
    """An engine whose pool takes the budget and no more."""
    shape = inspect_model(folder)
    stored = layer_formats(shape, rung.precision)
    layout = kv_layout(shape, stored, BLOCK_SIZE, STEP_TOKEN_BUDGET)
    model = load_model(open_checkpoint(folder), dtype=torch.bfloat16, device=torch.device("cpu"))
    pool = KVPool.allocate(
        layout,
        stored,
        num_blocks=budget_bytes // layout.block_bytes,
        kv_heads=rung.kv_heads,
        head_dim=HEAD_DIM,
        device=torch.device("cpu"),
    )
    return Engine(
        model=model,
        pool=pool,
        attention=attention_over(pool, query_heads=HEADS, scale=HEAD_DIM**-0.5, bases={}),
        meter=MemoryMeter(lambda: Usage(0, 0, 1 << 34), weights_bytes=0, kv_pool_bytes=pool.nbytes),
        max_context_tokens=CONTEXT,
        max_batch_limit=most_sequences,
        prefix_caching=False,
        reserve_context=rung.contiguous,
    )


def climb(engine: Engine, asked: list[AddRequest]) -> Outcome:
    """Run all requests to their ends."""
    outcome = Outcome()
    for request in asked:
        engine.add(request)
    started = time.perf_counter()
    while engine.has_work:
        outcome.output_tokens += sum(len(output.token_ids) for output in engine.step())
        outcome.sample(engine.state())
    outcome.seconds = time.perf_counter() - started
    outcome.preemptions = engine.state().preemptions
    return outcome


def rows(outcomes: dict[str, Outcome]) -> Iterator[tuple[str, ...]]:
    """The table's, each against the first."""
    first = next(iter(outcomes.values()))
    for name, outcome in outcomes.items():
        mean, took = statistics.mean(outcome.sequences), statistics.mean(outcome.sequence_bytes)
        rate = outcome.output_tokens / outcome.seconds
        first_rate = first.output_tokens / first.seconds
        yield (
            name,
            f"{mean:.1f}",
            f"{mean / statistics.mean(first.sequences):.1f}",
            f"{statistics.mean(outcome.pool_share):.1%}",
            format_bytes(round(took)),
            f"{1 - took / statistics.mean(first.sequence_bytes):.0%}",
            f"{rate:.0f}",
            f"{rate / first_rate:.1f}",
            str(outcome.preemptions),
        )


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--budget", default="64Mi", show_default=True, help="Bytes of the KV pool, the same for every rung.")
@click.option("--requests", "count", default=192, show_default=True, help="More than run at once.")
@click.option("--most-sequences", default=128, show_default=True, help="In a step: the processors', not the memory's.")
@click.option("--threads", default=2, show_default=True)
def main(budget: str, count: int, most_sequences: int, threads: int) -> None:
    """Run every rung and print the table."""
    if count <= most_sequences:
        raise click.UsageError(f"{count} requests never wait for {most_sequences} places: ask for more, or allow fewer")
    torch.set_num_threads(threads)
    console = Console()
    outcomes: dict[str, Outcome] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for kv_heads in {rung.kv_heads for rung in RUNGS}:
            save_model(Path(scratch) / str(kv_heads), kv_heads)
        for rung in track(RUNGS, description="rungs", console=console, transient=True):
            folder = Path(scratch) / str(rung.kv_heads)
            engine = engine_for(folder, rung, parse_quantity(budget), most_sequences)
            outcomes[rung.name] = climb(engine, list(islice(mixed_requests(CONTEXT, VOCAB), count)))
    titles = ("", "sequences", "times", "pool in use", "bytes a sequence", "saved", "tokens/s", "times", "preempted")
    table = Table(*titles, title=f"{budget} of KV, {count} requests, up to {most_sequences} sequences a step")
    for row in rows(outcomes):
        table.add_row(*row)
    console.print(table)
    console.print(GOALS)


if __name__ == "__main__":
    main()
