"""The seed's ladder with a model of Llama-2-13B's shape, on a GPU of which 40 GB are used.

    python bench/gpu_engine.py --out gpu_engine.json

    contiguous           every sequence reserves its longest, as engines without paging do; keys and values of all heads
    paged                blocks as they are needed
    + grouped heads      eight query heads share the keys and values of one
    + INT8, + INT4       keys and values of fewer bits

The weights are random; what is measured does not hang on them. Each rung has the real engine, with as much KV as the
planner gives it beside its weights in the same bytes, and an endless list of requests of mixed lengths. Of each:
sequences at once while others wait, the bytes of KV that one takes, output tokens a second with prefill included, the
time of a step in which nothing but decodes runs (each running sequence gets a token in it), and prefill alone.

It takes under ten minutes, writes its record after every rung, and **has not been run yet**: no GPU was at hand where
it was written. It needs torch with CUDA, triton, msgspec, numpy and llguidance, and this repository's files; it finds
the packages beside itself.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), *(str(ROOT / part) for part in ("kernels", "sizing", "worker"))]

import torch  # noqa: E402

from bench.rungs import (  # noqa: E402
    GOAL_SAVED,
    GOAL_SEQUENCES,
    GOAL_TOKENS,
    GOALS,
    Outcome,
    Rung,
    mixed_requests,
    rungs,
)
from kvtide_kernels.backends import attention_over  # noqa: E402
from kvtide_kernels.pool import KVPool  # noqa: E402
from kvtide_sizing.devices.device import Device, DeviceKind  # noqa: E402
from kvtide_sizing.formats import LayerFormat, Precision, layer_formats  # noqa: E402
from kvtide_sizing.memory.budget import MAX_BATCH, Budget, budget  # noqa: E402
from kvtide_sizing.memory.overhead import GRAPHS_BYTES  # noqa: E402
from kvtide_sizing.models import catalog  # noqa: E402
from kvtide_sizing.models.config_json import shape_of_config  # noqa: E402
from kvtide_sizing.quantity import format_bytes  # noqa: E402
from kvtide_worker.engine.decode_graphs import DecodeGraphs, GraphAttention  # noqa: E402
from kvtide_worker.engine.engine import Engine  # noqa: E402
from kvtide_worker.engine.key_bases import fit_key_bases  # noqa: E402
from kvtide_worker.engine.memory import MemoryMeter, Usage  # noqa: E402
from kvtide_worker.engine.messages import AddRequest, SamplingParams  # noqa: E402
from kvtide_worker.models.config import ModelConfig  # noqa: E402
from kvtide_worker.models.hf_config import read_config  # noqa: E402
from kvtide_worker.models.model import load_model  # noqa: E402

MODEL, BLOCK_SIZE = "llama-2-13b", 64
HELD_BYTES = 40 * 10**9

# Of the time that requests run, the part before anything is kept: the pool fills.
RAMP = 1 / 3

# Requests that wait at least, so that a free place is taken in the next step.
QUEUED = 32

# Prompts that are measured without decodes, and tokens of each.
PREFILLS, PREFILL_TOKENS = 8, 1024

CALIBRATION_TOKENS = 1024


class RandomCheckpoint:
    """A Llama's tensors, which are drawn when they are read."""

    def __init__(self, config: dict[str, Any]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            # Without a type of its own it is known by its class; the file is all that is read of the folder.
            (Path(folder) / "config.json").write_text(json.dumps(config))
            self.config: ModelConfig = read_config(Path(folder))
        hidden, inner, dim = self.config.hidden_size, self.config.intermediate_size, self.config.head_dim
        query, kv = self.config.query_heads * dim, self.config.kv_heads * dim
        table = (self.config.vocab_size, hidden)
        self._shapes = {
            "embed_tokens": table,
            "lm_head": table,
            "q_proj": (query, hidden),
            "k_proj": (kv, hidden),
            "v_proj": (kv, hidden),
            "o_proj": (hidden, query),
            "gate_proj": (inner, hidden),
            "up_proj": (inner, hidden),
            "down_proj": (hidden, inner),
        }

    def shape(self, name: str) -> tuple[int, ...]:
        """As `Checkpoint.shape`: norms are what is no matrix."""
        return self._shapes.get(name.split(".")[-2], (self.config.hidden_size,))

    def read(self, name: str, out: torch.Tensor) -> None:
        """As `Checkpoint.read`."""
        if out.dim() == 1:
            out.fill_(1)
        else:
            out.normal_(0, 0.02)


@dataclass(frozen=True)
class Held:
    """What a rung's engine is built from, in bytes that all rungs have alike."""

    rung: Rung
    checkpoint: RandomCheckpoint
    formats: tuple[LayerFormat, ...]
    budget: Budget
    num_blocks: int

    @classmethod
    def of(cls, rung: Rung, config: dict[str, Any], held_bytes: int) -> Held:
        """Raises SystemExit where not one sequence of the model's context fits."""
        config = {**config, "num_key_value_heads": rung.kv_heads}
        checkpoint, shape = RandomCheckpoint(config), shape_of_config(config, "random")
        context = checkpoint.config.max_position_embeddings
        device = Device("held", DeviceKind.GPU, held_bytes)
        taken = budget(
            shape, device, rung.precision, BLOCK_SIZE, context_tokens=context, batch=MAX_BATCH[DeviceKind.GPU]
        )
        num_blocks = taken.num_blocks(held_bytes)
        if not taken.sequences(num_blocks, context):
            raise SystemExit(f"{rung.name}: {held_bytes} bytes hold no sequence of {context} tokens beside the weights")
        return cls(rung, checkpoint, layer_formats(shape, rung.precision), taken, num_blocks)

    @property
    def batch_limit(self) -> int:
        """Sequences at most: of the contiguous ones those that fit, of others no shorter than two blocks."""
        tokens = self.checkpoint.config.max_position_embeddings if self.rung.contiguous else 2 * BLOCK_SIZE
        return min(MAX_BATCH[DeviceKind.GPU], self.budget.sequences(self.num_blocks, tokens))


@dataclass
class Measured(Outcome):
    """An outcome, and what is a GPU's. step_ms: of steps that gave a token to each running sequence and did no more."""

    pool_bytes: int = 0
    graphs: int = 0
    prefill_tokens_per_s: float = 0.0
    step_ms: list[float] = field(default_factory=list)

    def summary(self) -> dict[str, float]:
        """The numbers of a row; nothing where a run was too short for one."""
        return {
            "sequences": statistics.mean(self.sequences or [0]),
            "sequence_bytes": statistics.mean(self.sequence_bytes or [0]),
            "pool_in_use": statistics.mean(self.pool_share or [0]),
            "tokens_per_s": self.output_tokens / self.seconds,
            "ms_per_token": statistics.median(self.step_ms or [0]),
            "prefill_tokens_per_s": self.prefill_tokens_per_s,
            "pool_bytes": self.pool_bytes,
            "graphs": self.graphs,
            "preemptions": self.preemptions,
        }


def build(held: Held, device: torch.device) -> Engine:
    """Weights, bases, pool, graphs and an engine over them."""
    torch.manual_seed(0)
    config, layout, stored = held.checkpoint.config, held.budget.layout, held.formats
    model = load_model(held.checkpoint, dtype=torch.bfloat16, device=device)
    bases = {}
    if any(each.has_key_basis for each in stored):
        text = torch.randint(config.vocab_size, (min(CALIBRATION_TOKENS, config.max_position_embeddings),)).tolist()
        bases = fit_key_bases(model, stored, text, device)
    num_blocks = held.num_blocks * len(layout.tables)
    pool = KVPool.allocate(
        layout, stored, num_blocks=num_blocks, kv_heads=config.kv_heads, head_dim=config.head_dim, device=device
    )
    attention = attention_over(pool, query_heads=config.query_heads, scale=config.attention_scale, bases=bases)
    graphs = None
    if isinstance(attention, GraphAttention):
        from kvtide_worker.engine.cuda_recorder import CudaRecorder

        graphs = DecodeGraphs(
            model,
            CudaRecorder(device),
            device,
            torch.bfloat16,
            layout=layout,
            max_context_tokens=config.max_position_embeddings,
            most_sequences=held.batch_limit,
            most_bytes=GRAPHS_BYTES,
        )
        graphs.record(attention, layout=layout, batch_limit=held.batch_limit)
    return Engine(
        model=model,
        pool=pool,
        attention=attention,
        # Read by torch's allocator alone: what the state's other parts say is not measured here.
        meter=MemoryMeter(
            lambda: Usage(0, 0, HELD_BYTES), weights_bytes=model.weights_bytes, kv_pool_bytes=pool.nbytes
        ),
        max_context_tokens=config.max_position_embeddings,
        max_batch_limit=held.batch_limit,
        prefix_caching=False,
        reserve_context=held.rung.contiguous,
        graphs=graphs,
    )


def prefill_rate(engine: Engine, config: ModelConfig) -> float:
    """Tokens of prompts a second, of prompts that nothing else runs beside; they run once before they are timed."""
    tokens = min(PREFILL_TOKENS, config.max_position_embeddings // 2)
    seconds = 0.0
    for turn in range(2):
        for number in range(PREFILLS):
            prompt = torch.randint(3, config.vocab_size, (tokens,)).tolist()
            engine.add(AddRequest(f"prefill {turn} {number}", prompt, SamplingParams(max_tokens=1, temperature=0.0)))
        started = time.perf_counter()
        while engine.has_work:
            engine.step()
        seconds = time.perf_counter() - started
    return PREFILLS * tokens / seconds


def climb(engine: Engine, requests: Iterator[AddRequest], seconds: float, measured: Measured) -> None:
    """Run requests for so long, with always some more that wait; the pool fills during the first part of it."""
    started = time.perf_counter()
    began: float | None = None
    preempted = 0
    while (now := time.perf_counter()) - started < seconds:
        if began is None and now - started >= RAMP * seconds:
            began, preempted = now, engine.state().preemptions
        for request in islice(requests, max(0, QUEUED - engine.state().waiting)):
            engine.add(request)
        before, step_began = engine.state(), time.perf_counter()
        outputs = engine.step()
        took, after = time.perf_counter() - step_began, engine.state()
        if began is None:
            continue
        measured.output_tokens += sum(len(output.token_ids) for output in outputs)
        measured.sample(after)
        if outputs and after.queued_prompt_tokens == before.queued_prompt_tokens:
            measured.step_ms.append(1000 * took)
    if began is not None:
        measured.seconds = time.perf_counter() - began
    measured.preemptions = engine.state().preemptions - preempted


def measure(held: Held, device: torch.device, seconds: float) -> Measured:
    """One rung, from its weights to its numbers."""
    engine = build(held, device)
    graphs = engine._graphs
    measured = Measured(pool_bytes=engine.state().memory.kv_pool_bytes, graphs=len(graphs.buckets) if graphs else 0)
    config = held.checkpoint.config
    measured.prefill_tokens_per_s = prefill_rate(engine, config)
    climb(engine, mixed_requests(config.max_position_embeddings, config.vocab_size), seconds, measured)
    return measured


def told(rows: dict[str, dict[str, float]]) -> Iterator[str]:
    """The table, each rung against the first."""
    yield f"{'':30}{'sequences':>14}{'KV a sequence':>16}{'saved':>7}{'tokens/s':>16}{'ms/token':>10}{'prefill/s':>11}"
    first = next(iter(rows.values()))
    for name, row in rows.items():
        ratios, taken = against(row, first), format_bytes(round(row["sequence_bytes"]))
        yield (
            f"{name:30}{row['sequences']:7.1f} {ratios['sequences']:5.1f}x{taken:>16}"
            f"{ratios['saved']:7.0%}{row['tokens_per_s']:9.0f} {ratios['tokens']:5.1f}x{row['ms_per_token']:10.1f}"
            f"{row['prefill_tokens_per_s']:11.0f}"
        )


def against(row: dict[str, float], first: dict[str, float]) -> dict[str, float]:
    """What the goals are about; 0 where the first row has nothing to compare with."""

    def times(what: str) -> float:
        return row[what] / first[what] if first[what] else 0.0

    return {
        "sequences": times("sequences"),
        "saved": 1 - times("sequence_bytes"),
        "tokens": times("tokens_per_s"),
    }


def missed(rows: dict[str, dict[str, float]], rung: str) -> list[str]:
    """The goals that a rung did not reach, in words."""
    ratios = against(rows[rung], next(iter(rows.values())))
    goals = {"sequences": GOAL_SEQUENCES, "saved": GOAL_SAVED, "tokens": GOAL_TOKENS}
    return [f"{rung}: {what} {ratios[what]:.2f}, goal {goal:g}" for what, goal in goals.items() if ratios[what] < goal]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu_engine.json"), help="where the JSON goes")
    parser.add_argument("--seconds", type=float, default=45.0, help="that requests run, of each rung")
    parser.add_argument("--held", type=int, default=HELD_BYTES, help="bytes of the device that are used")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Measure every rung, print, and write the record as it grows."""
    options = parse(arguments)
    if not torch.cuda.is_available():
        raise SystemExit("no CUDA device: this benchmark measures a GPU, and estimates nothing without one")
    device = torch.device("cuda")
    total = torch.cuda.get_device_properties(device).total_memory
    if total < options.held:
        raise SystemExit(
            f"the device has {total} bytes, fewer than the {options.held} that are to be used; --held fewer"
        )
    torch.cuda.set_per_process_memory_fraction(options.held / total, device)
    config = catalog.config(MODEL)
    ladder = rungs(config["num_attention_heads"], Precision.INT8, Precision.INT4)
    rows: dict[str, dict[str, float]] = {}
    for rung in ladder:
        began = time.perf_counter()
        measured = measure(Held.of(rung, config, options.held), device, options.seconds)
        rows[rung.name] = measured.summary()
        gc.collect()  # an engine and its graphs know each other
        torch.cuda.empty_cache()
        print(f"{rung.name}: {time.perf_counter() - began:.0f} s", flush=True)
        record = {
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "model": MODEL,
            "held_bytes": options.held,
            "seconds": options.seconds,
            "rows": rows,
        }
        options.out.write_text(json.dumps(record, indent=1) + "\n")
    print(f"{torch.cuda.get_device_name()}, {MODEL}'s shape in {options.held} bytes")
    for line in told(rows):
        print(line)
    print(GOALS)
    for line in missed(rows, f"+ {Precision.INT8}") or ["every goal is reached"]:
        print(line)


if __name__ == "__main__":
    main()
