"""A whole step of the engine on the CPU, in one run: `python -m bench.steps [--kv] [--threads N]`.

SmolLM2-135M with its real weights. A prefill of 256 tokens, and decodes of 1, 16 and 64 sequences with 256 tokens each,
with weights in BF16 and in INT8. With --kv: 16 sequences of 4,096 tokens, KV in BF16 and in INT8. The configurations
take turns, so that what else the machine does meets all alike; a time is the best tenth of its turns.

Beside each stands its bound: the bytes that it must read (weights once, the keys and values of every sequence) over the
bandwidth of a plain read, or its multiplications over the peak of torch's own BF16 products, whichever is longer; both
are measured in this run.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import click
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from bench.cpu_attention import best_tenth, plain_read, timed
from devcluster.model import smollm2_gguf
from kvtide_sizing.devices.device import Device, DeviceKind
from kvtide_sizing.models.inspect import inspect_model
from kvtide_sizing.plan import Plan, Policy, Workload, plan
from kvtide_worker.engine.calibration import calibration_tokens
from kvtide_worker.engine.config import EngineConfig
from kvtide_worker.engine.engine import Engine
from kvtide_worker.engine.load import load_engine
from kvtide_worker.engine.messages import AddRequest, SamplingParams
from kvtide_worker.text.tokenizer import Tokenizer

PROMPT, SEQUENCES = 256, (1, 16, 64)
LONG, LONG_SEQUENCES = 4096, 16
VOCAB = 49152
# Tokens that a sequence may generate while it is timed.
ROOM = 512


@dataclass
class Machine:
    """What was measured of it in this run: bytes a second read, and BF16 multiply-adds a second."""

    read_bytes: float
    multiply_adds: float

    @classmethod
    def measure(cls) -> Machine:
        """A plain read of 256 MiB, and a product of large matrices."""
        memory = torch.zeros(256 * 2**20, dtype=torch.uint8)
        read_us = best_tenth([timed(lambda: plain_read(memory)) for _ in range(20)])
        one, other = torch.randn(2048, 2048).bfloat16(), torch.randn(2048, 2048).bfloat16()
        product_us = best_tenth([timed(lambda: one @ other) for _ in range(10)])
        return cls(memory.numel() / read_us * 1e6, 2048**3 / product_us * 1e6)

    def bound_ms(self, read_bytes: float, multiply_adds: float) -> tuple[float, str]:
        """The longer of the two, and which it is."""
        reading, computing = 1e3 * read_bytes / self.read_bytes, 1e3 * multiply_adds / self.multiply_adds
        return (reading, "reading") if reading > computing else (computing, "computing")


@dataclass
class Case:
    """One engine with its sequences: what is timed, and what it must read and multiply."""

    name: str
    engine: Engine
    plan: Plan
    sequences: int
    context: int
    times: list[float] = field(default_factory=list)
    added: int = 0

    def add(self, sequences: int, tokens: int) -> None:
        """Queue prompts that share nothing."""
        for _ in range(sequences):
            self.added += 1
            prompt = torch.randint(1000, VOCAB, (tokens,)).tolist()
            sampling = SamplingParams(max_tokens=ROOM, temperature=0.0, ignore_eos=True)
            self.engine.add(AddRequest(str(self.added), prompt, sampling))

    def fill(self) -> None:
        """All sequences decode behind this."""
        self.add(self.sequences, self.context)
        while self.engine.state().queued_prompt_tokens:
            self.engine.step()

    def empty(self) -> None:
        """Forget them."""
        for name in self.engine.request_ids:
            self.engine.abort(name)

    def bound(self, machine: Machine, weights: int) -> tuple[float, str]:
        """Of one decode step. weights: how many there are that a token is multiplied with."""
        kv = self.sequences * self.context * self.plan.kv.bytes_per_token
        return machine.bound_ms(self.plan.memory.weights_bytes + kv, self.sequences * weights)


def engine_with(weights: str, precision: str, sequences: int, context: int, threads: int) -> tuple[Engine, Plan]:
    """SmolLM2 with room for all."""
    path = smollm2_gguf()
    device = Device("this", DeviceKind.CPU, 6 << 30)
    made = plan(
        inspect_model(path),
        device,
        Workload(max_context_tokens=context + ROOM, target_concurrency=sequences),
        Policy(precision=precision, weights=weights, block_size_tokens=64, prefix_caching=False, served_only=True),
    )
    content = made.to_json()
    # All engines are there at once, each with the blocks that it needs and no more.
    content["kv"]["numBlocks"] = (sequences + 1) * (-(-(context + ROOM) // made.kv.block_size_tokens) + 1)
    content["batchLimit"] = sequences
    config = EngineConfig(f"file://{path}", content, threads=threads)
    engine, _ = load_engine(config, lambda stage: None, lambda: calibration_tokens(Tokenizer.load(path)))
    return engine, made


def in_turns(cases: list[Case], steps: int, console: Console) -> None:
    """Times of decode steps, a few of each case at a time."""
    for case in cases:
        case.fill()
    for _ in track(range(steps // 4), description="decodes", console=console, transient=True):
        for case in cases:
            case.times += [timed(case.engine.step) for _ in range(4)]
    for case in cases:
        case.empty()


def prefill_ms(case: Case, rounds: int = 12) -> float:
    """Milliseconds of one prompt of PROMPT tokens, its first token included."""
    times = []
    for _ in range(rounds):
        case.add(1, PROMPT)
        times.append(timed(lambda: _until_computed(case.engine)))
        case.empty()
    return best_tenth(times) / 1e3


def _until_computed(engine: Engine) -> None:
    engine.step()
    while engine.state().queued_prompt_tokens:
        engine.step()


@click.command(help=__doc__)
@click.option("--kv", is_flag=True, help="Long contexts, with KV of two kinds.")
@click.option("--threads", default=2, show_default=True)
@click.option("--steps", default=80, show_default=True, help="Of each case.")
def main(kv: bool, threads: int, steps: int) -> None:
    """Measure, and print the table."""
    console, machine = Console(), Machine.measure()
    weights = inspect_model(smollm2_gguf()).parameters
    make: list[tuple[str, str, str, int, int]] = (
        [(f"{p} KV", "BF16", p, LONG_SEQUENCES, LONG) for p in ("BF16", "INT8")]
        if kv
        else [(f"{w} weights", w, "BF16", n, PROMPT) for n in SEQUENCES for w in ("BF16", "INT8")]
    )
    cases = [
        Case(name, *engine_with(w, precision, n, context, threads), n, context)
        for name, w, precision, n, context in make
    ]
    in_turns(cases, steps, console)
    table = Table("", "sequences", "tokens each", "ms a step", "bound ms", "by", "times the bound", "tokens/s")
    for case in cases:
        took, (bound, by) = best_tenth(case.times) / 1e3, case.bound(machine, weights)
        row = (case.name, str(case.sequences), str(case.context), f"{took:.2f}", f"{bound:.2f}", by)
        table.add_row(*row, f"{took / bound:.2f}", f"{1e3 * case.sequences / took:.0f}")
    for case in [] if kv else cases[:2]:
        took = prefill_ms(case)
        bound, by = machine.bound_ms(case.plan.memory.weights_bytes, PROMPT * weights)
        row = (f"{case.name}, prefill", "1", str(PROMPT), f"{took:.2f}", f"{bound:.2f}", by)
        table.add_row(*row, f"{took / bound:.2f}", f"{1e3 * PROMPT / took:.0f}")
    console.print(table)
    console.print(f"a plain read: {machine.read_bytes / 1e9:.1f} GB/s; BF16: {machine.multiply_adds / 1e9:.0f} G/s")


if __name__ == "__main__":
    main()
