"""A decode step's matrices on the CPU in one run: `python -m bench.linears [--rounds N] [--threads N]`.

SmolLM2-135M's matrices, with random weights, in all of its layers one after another, so that nothing is in the
processor's cache when its turn comes again. Packed BF16, packed INT8 and torch's own product have their turns at each
matrix, again and again, beside a plain read of the same bytes, so that what else the machine does meets all alike. A
number is the best tenth of its turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import click
import torch
from rich.console import Console
from rich.table import Table
from torch.nn.functional import linear

from kvtide_kernels.cpu.library import Library, library
from kvtide_kernels.cpu.linear import PackedMatrix

# Outputs and inputs; how often in a step.
SHAPES = {
    "qkv": (960, 576, 30),
    "attention out": (576, 576, 30),
    "gate, up": (3072, 576, 30),
    "down": (576, 1536, 30),
    "head": (49152, 576, 1),
}
ROWS = (1, 16, 64)


class Case:
    """One shape: as many different matrices as a step has of it."""

    def __init__(self, name: str, kernels: Library) -> None:
        self.name = name
        self.outputs, self.inputs, self.count = SHAPES[name]
        self._kernels = kernels
        weights = [torch.randn(self.outputs, self.inputs).bfloat16() for _ in range(self.count)]
        self._plain = weights
        self._bf16 = [PackedMatrix.bf16(weight.clone()) for weight in weights]
        self._int8 = [PackedMatrix.int8(weight) for weight in weights]

    def measure(self, rows: int, rounds: int) -> dict[str, float]:
        """Seconds of one product, of each kind."""
        x = torch.randn(rows, self.inputs).bfloat16()
        # As a model must, for rows that do not change with their company: see models/layers.py.
        several = x.expand(2, -1) if rows == 1 else x
        times: dict[str, list[float]] = {name: [] for name in ("read", "BF16", "INT8", "torch")}
        for _ in range(rounds):
            for plain, bf16, int8 in zip(self._plain, self._bf16, self._int8, strict=True):
                times["BF16"].append(timed(partial(bf16.multiply, x, self._kernels)))
                times["read"].append(timed(partial(torch.sum, plain.view(torch.int64))))
                times["INT8"].append(timed(partial(int8.multiply, x, self._kernels)))
                times["torch"].append(timed(partial(linear, several, plain)))
        return {name: best_tenth(taken) for name, taken in times.items()}


def timed(work: Callable[[], object]) -> float:
    """Seconds."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def best_tenth(times: list[float]) -> float:
    """The mean of the shortest tenth."""
    best = sorted(times)[: max(1, len(times) // 10)]
    return sum(best) / len(best)


@click.command()
@click.option("--rounds", default=10, show_default=True, help="Turns of each matrix.")
@click.option("--threads", default=torch.get_num_threads(), show_default=True)
def main(rounds: int, threads: int) -> None:
    """Print a table for each number of rows, and what a step's matrices take together."""
    torch.set_num_threads(threads)
    console, cases = Console(), [Case(name, library()) for name in SHAPES]
    for rows in ROWS:
        table = Table(title=f"{rows} rows, {threads} threads: us (GB/s of weights, GFLOP/s)")
        for heading in ("matrix", "plain read", "BF16", "INT8", "torch", "BF16 to torch"):
            table.add_column(heading, justify="right")
        step = dict.fromkeys(("read", "BF16", "INT8", "torch"), 0.0)
        for case in cases:
            seconds = case.measure(rows, rounds)
            elements = case.outputs * case.inputs
            cells = [f"{seconds['read'] * 1e6:.0f} ({2 * elements / seconds['read'] / 1e9:.0f})"]
            for name, bytes_each in (("BF16", 2), ("INT8", 1), ("torch", 2)):
                taken = seconds[name]
                bandwidth, rate = bytes_each * elements / taken / 1e9, 2 * rows * elements / taken / 1e9
                cells.append(f"{taken * 1e6:.0f} ({bandwidth:.0f}, {rate:.0f})")
            table.add_row(case.name, *cells, f"{seconds['torch'] / seconds['BF16']:.2f}")
            step = {name: total + case.count * seconds[name] for name, total in step.items()}
        totals = [f"{step[name] * 1e3:.2f} ms" for name in ("read", "BF16", "INT8", "torch")]
        table.add_row("a step", *totals, f"{step['torch'] / step['BF16']:.2f}", style="bold")
        console.print(table)


if __name__ == "__main__":
    main()
