"""Decode attention on the CPU in one run: `python -m bench.cpu_attention [--json FILE] [--rounds N]`.

`--shape`, `--format` and `--tokens` measure some of it; each may be repeated.

One sequence decodes one token, in layers one after another until their blocks are RING_BYTES together, so that nothing
is in the processor's cache when its turn comes again. Every layer is timed by itself, and a number is the best tenth of
all of them; every format has its turn beside a plain read of the same bytes, again and again, so that what else the
machine does meets all alike. So have the processor's multiply instructions: with many query heads to a KV head they
bind, not the memory, and a row says which of them does and what share of it was reached. Keys of 8 and 4 bits are in a
basis, and what has 4 bits keeps its last tokens in BF16, as the engine has them.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import click
import torch
from rich.console import Console
from rich.table import Table

from bench.peak import Peak
from kvtide_kernels.attention import HeldTable, SequenceSpan
from kvtide_kernels.cpu.attention import CpuAttention
from kvtide_kernels.cpu.library import library
from kvtide_kernels.huge_pages import in_huge_pages
from kvtide_kernels.key_basis import KeyBasis
from kvtide_kernels.pool import KVPool, StoredLayer
from kvtide_kernels.torch_attention import TorchAttention
from kvtide_sizing.formats import BF16, INT4, INT8, RECENT_TOKENS, LayerFormat
from kvtide_sizing.memory.kv import KvLayout, TableLayout

HEAD_DIM, BLOCK_SIZE = 128, 64
# Query and KV heads. Those of Llama 2 70B, with as many or as few KV heads as there are; and of Llama 3 8B.
SHAPES = {"MHA": (64, 64), "GQA-8": (64, 8), "MQA": (64, 1), "GQA-8 of 32": (32, 8)}
FORMATS = {
    "BF16": LayerFormat(BF16, BF16),
    "INT8": LayerFormat(INT8, INT8),
    "K8V4": LayerFormat(INT8, INT4),
    "INT4": LayerFormat(INT4, INT4),
}
TOKENS = (1024, 8192, 32768)
RING_BYTES = 256 * 2**20
GOALS = {
    "share": 0.6,  # of the plain read's bandwidth
    "INT8 to BF16": 1.5,  # from 8k tokens on
    "INT4, K8V4 to INT8": 1.0,
    "GQA-8 to MHA": 4.0,
    "MQA to MHA": 6.0,
}


@dataclass
class Measured:
    """One row: times in microseconds for one token in one layer, bandwidths in GB/s of the bytes as stored."""

    shape: str
    format: str
    tokens: int
    bytes: int
    layers: int
    us: float = float("inf")
    read_us: float = float("inf")
    products_us: float = 0.0  # of the multiplications alone, at their peak; 0 where that was not measured

    @property
    def gbps(self) -> float:
        """Bandwidth of the attention."""
        return self.bytes / self.us / 1e3

    @property
    def read_gbps(self) -> float:
        """Bandwidth of the plain read."""
        return self.bytes / self.read_us / 1e3

    @property
    def share(self) -> float:
        """Of the plain read's bandwidth."""
        return self.read_us / self.us

    @property
    def binds(self) -> str:
        """What takes longer, were it alone."""
        return "products" if self.products_us > self.read_us else "memory"

    @property
    def roof_share(self) -> float:
        """Of what binds."""
        return max(self.products_us, self.read_us) / self.us


class Case:
    """A format at a shape and length: layers of arenas, cut out of memory that all cases share, and a planned step."""

    def __init__(self, memory: torch.Tensor, shape: str, name: str, tokens: int) -> None:
        stored, blocks = FORMATS[name], tokens // BLOCK_SIZE
        query_heads, kv_heads = SHAPES[shape]
        widths = [BLOCK_SIZE * side.vector_bytes(HEAD_DIM) for side in (stored.key, stored.value)]
        recent = RECENT_TOKENS if stored.keeps_recent else 0
        layout = KvLayout(BLOCK_SIZE, kv_heads * sum(widths), (TableLayout((0,), None),), 1, recent)
        held = blocks + layout.recent_blocks
        layer_bytes = held * layout.block_bytes
        layers = max(1, -(-RING_BYTES // layer_bytes))
        self.row = Measured(shape, name, tokens, layer_bytes, layers)
        self._times: list[float] = []
        self._read_times: list[float] = []
        self._memory = memory[: layers * layer_bytes]
        sliced = []
        for part in torch.split(self._memory, layer_bytes):
            sides = torch.split(part, [held * kv_heads * width for width in widths])
            key, value = (side.view(held, kv_heads, width) for side, width in zip(sides, widths, strict=True))
            sliced.append(StoredLayer(stored, key, value, 0))
        layout = replace(layout, tables=(TableLayout(tuple(range(layers)), None),))
        self._pool = KVPool(layout, HEAD_DIM, self._memory, tuple(sliced))
        order = torch.randperm(held).tolist()
        table = HeldTable(order[:blocks], recent=order[blocks:])
        # One basis for all layers: what is read of the pool is to be compared with a plain read.
        matrix = torch.eye(HEAD_DIM).repeat(kv_heads, 1, 1)
        basis = KeyBasis(matrix, matrix, torch.zeros(kv_heads, HEAD_DIM))
        bases = dict.fromkeys(range(layers), basis) if stored.has_key_basis else {}
        self._step = CpuAttention(self._pool, scale=HEAD_DIM**-0.5, bases=bases).plan(
            [SequenceSpan([table], tokens - 1, 1)]
        )
        self._query = torch.randn(1, query_heads, HEAD_DIM).bfloat16()
        self._own = torch.randn(1, kv_heads, HEAD_DIM).bfloat16()

    def fill(self) -> None:
        """Plausible contents: small elements, and a scale and a zero point for each token."""
        for layer in self._pool.layers:
            for arena, stored in ((layer.key, layer.format.key), (layer.value, layer.format.value)):
                data = BLOCK_SIZE * HEAD_DIM * stored.bits // 8
                if stored is BF16:
                    arena.view(torch.bfloat16).fill_(0.1)
                else:
                    arena[..., :data].fill_(0x35)
                    arena[..., data:].view(torch.float16).fill_(0.01)

    def measure(self) -> None:
        """A turn of the attention and one of the plain read in every layer."""
        parts = torch.split(self._memory, self.row.bytes)
        for layer in range(len(parts)):
            self._times.append(timed(partial(self._step.run, layer, self._query, self._own, self._own)))
            self._read_times.append(timed(partial(plain_read, parts[(layer + len(parts) // 2) % len(parts)])))

    def finish(self, peak: Peak | None) -> Measured:
        """The row, by the best tenth of its turns: on a machine that others use, most turns are not undisturbed."""
        self.row.us, self.row.read_us = best_tenth(self._times), best_tenth(self._read_times)
        if peak:
            products = SHAPES[self.row.shape][0] * self.row.tokens * HEAD_DIM
            stored = FORMATS[self.row.format]
            self.row.products_us = sum(products / peak.per_us(side) for side in (stored.key, stored.value))
        return self.row


def plain_read(memory: torch.Tensor) -> None:
    """Read every byte with all threads: of torch's reductions over contiguous memory the fastest that we found."""
    memory[: memory.numel() // 4 * 4].view(torch.float32).max()


def best_tenth(times: list[float]) -> float:
    """The tenth percentile, or the best of fewer than ten."""
    return sorted(times)[len(times) // 10]


def timed(action: Callable[[], object]) -> float:
    """Microseconds."""
    start = time.perf_counter()
    action()
    return (time.perf_counter() - start) * 1e6


def torch_backend_us(shape: str, tokens: int, rounds: int) -> float:
    """The plain torch backend in BF16, for one token in one layer."""
    (query_heads, kv_heads), blocks = SHAPES[shape], tokens // BLOCK_SIZE
    block_bytes = BLOCK_SIZE * kv_heads * HEAD_DIM * 4
    layers = max(1, RING_BYTES // (blocks * block_bytes))
    layout = KvLayout(BLOCK_SIZE, layers * block_bytes, (TableLayout(tuple(range(layers)), None),), 1)
    pool = KVPool.allocate(
        layout,
        [FORMATS["BF16"]] * layers,
        num_blocks=blocks,
        kv_heads=kv_heads,
        head_dim=HEAD_DIM,
        device=torch.device("cpu"),
    )
    step = TorchAttention(pool, scale=HEAD_DIM**-0.5).plan([SequenceSpan([HeldTable([*range(blocks)])], tokens - 1, 1)])
    query = torch.randn(1, query_heads, HEAD_DIM).bfloat16()
    own = torch.randn(1, kv_heads, HEAD_DIM).bfloat16()
    return best_tenth([timed(partial(step.run, turn % layers, query, own, own)) for turn in range(rounds * layers)])


def machine() -> dict[str, object]:
    """What the numbers hang on."""
    info = Path("/proc/cpuinfo")
    names = [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    return {
        "cpu": names[0] if names else "unknown",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "kernels": library().instruction_set,
        "load_before": os.getloadavg()[0],
    }


def goals_met(rows: list[Measured]) -> dict[str, float]:
    """The worst of each goal's ratios. MQA's share is a row of its own: it computes most for each byte."""
    by = {(row.shape, row.format, row.tokens): row.us for row in rows}
    long = [row for row in rows if row.tokens >= 8192]

    def worst(ratios: list[float]) -> float:
        return min(ratios, default=float("nan"))

    def to_format(base: str, *formats: str) -> float:
        same = [(row, by.get((row.shape, base, row.tokens))) for row in long if row.format in formats]
        return worst([us / row.us for row, us in same if us])

    def to_mha(shape: str) -> float:
        same = [(row, by.get(("MHA", row.format, row.tokens))) for row in long if row.shape == shape]
        return worst([us / row.us for row, us in same if us])

    return {
        "share": worst([row.share for row in long if row.shape != "MQA"]),
        "share, MQA too": worst([row.share for row in rows]),
        "share of what binds": worst([row.roof_share for row in long]),
        "INT8 to BF16": to_format("BF16", "INT8"),
        "INT4, K8V4 to INT8": to_format("INT8", "K8V4", "INT4"),
        "GQA-8 to MHA": to_mha("GQA-8"),
        "MQA to MHA": to_mha("MQA"),
    }


@click.command()
@click.option("--rounds", default=7, help="Turns of each case.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the record here too.")
@click.option("--shape", "shapes", type=click.Choice([*SHAPES]), multiple=True, help="Default: all.")
@click.option("--format", "formats", type=click.Choice([*FORMATS]), multiple=True, help="Default: all.")
@click.option(
    "--tokens", "lengths", type=click.IntRange(min=BLOCK_SIZE), multiple=True, help="Default: 1k, 8k and 32k."
)
def main(
    rounds: int, json_file: Path | None, shapes: tuple[str, ...], formats: tuple[str, ...], lengths: tuple[int, ...]
) -> None:
    """Measure, and print a table with the goals beside what was reached."""
    about = machine()
    shapes, formats, lengths = shapes or tuple(SHAPES), formats or tuple(FORMATS), lengths or TOKENS
    widest = max(lengths) * max(SHAPES[shape][1] for shape in shapes) * HEAD_DIM * 4
    # As a pool has them.
    memory = in_huge_pages(torch.empty(max(widest, 2 * RING_BYTES), dtype=torch.uint8)).zero_()
    peak = Peak(torch.get_num_threads()) if library().instruction_set == "avx512" else None
    rows: list[Measured] = []
    plain: dict[tuple[str, int], float] = {}
    for tokens in lengths:
        cases = [Case(memory, shape, name, tokens) for shape in shapes for name in formats]
        for _ in range(rounds):
            if peak:
                peak.measure()
            for case in cases:
                case.fill()
                case.measure()
        rows += [case.finish(peak) for case in cases]
        if "BF16" in formats:
            plain |= {(shape, tokens): torch_backend_us(shape, tokens, 2) for shape in shapes}
    table = Table(
        *("heads", "tokens", "format", "µs a token", "GB/s", "read GB/s", "share", "products' share", "binds"),
        *("to BF16", "plain torch µs"),
    )
    for row in rows:
        bf16 = [r.us for r in rows if (r.shape, r.tokens, r.format) == (row.shape, row.tokens, "BF16")]
        torch_us = f"{plain[row.shape, row.tokens]:.0f}" if row.format == "BF16" else ""
        table.add_row(
            *(row.shape, str(row.tokens), row.format, f"{row.us:.1f}", f"{row.gbps:.1f}", f"{row.read_gbps:.1f}"),
            *(f"{row.share:.0%}", f"{row.products_us / row.us:.0%}", f"{row.binds} {row.roof_share:.0%}"),
            *(f"{bf16[0] / row.us:.2f}" if bf16 else "", torch_us),
        )
    reached = goals_met(rows)
    console = Console(width=130)
    console.print(about, table)
    for name, value in reached.items():
        console.print(f"{name}: {value:.2f}" + (f" (goal {GOALS[name]})" if name in GOALS else ""))
    if json_file:
        derived = ("gbps", "read_gbps", "share", "binds", "roof_share")
        record = [asdict(row) | {name: getattr(row, name) for name in derived} for row in rows]
        torch_rows = [{"shape": s, "tokens": t, "us": us} for (s, t), us in plain.items()]
        json_file.write_text(
            json.dumps(
                {"machine": about, "goals": GOALS, "reached": reached, "rows": record, "torch": torch_rows}, indent=1
            )
        )


if __name__ == "__main__":
    main()
