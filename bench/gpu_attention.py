"""Decode attention on a GPU: share of the memory's peak bandwidth for each format, batch and context.

    python bench/gpu_attention.py --out gpu_attention.json

runs on a machine that has Python 3.12, torch 2.11 or later with triton, and this repository's files, nothing else:
it finds the packages beside itself. It checks every kernel against torch first, and fails where one is wrong. It takes
under ten minutes, and has not been run yet: no GPU was at hand where it was written. Torch's attention over contiguous
K and V runs beside it, and FlashInfer and vLLM where they import.

Times are of whole layers (write, decode, reduction) in a CUDA graph, over so many layers that no cache holds them.
Bytes are those of the packed K and V of all past tokens, scales included; nothing else is counted. K8V4 and INT4 keep
their last 32 tokens in BF16 too, and read those instead, which is in the time and not in the bytes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "kernels"), str(ROOT / "sizing")]

import torch  # noqa: E402

from kvtide_kernels.attention import HeldTable, SequenceSpan  # noqa: E402
from kvtide_kernels.pool import KVPool  # noqa: E402
from kvtide_kernels.triton.attention import TritonAttention  # noqa: E402
from kvtide_sizing.devices.catalog import GPUS, name_of_product  # noqa: E402
from kvtide_sizing.formats import BF16, INT4, INT8, RECENT_TOKENS, LayerFormat  # noqa: E402
from kvtide_sizing.memory.kv import KvLayout, TableLayout  # noqa: E402

FORMATS = {
    "BF16": LayerFormat(BF16, BF16),
    "INT8": LayerFormat(INT8, INT8),
    "K8V4": LayerFormat(INT8, INT4),
    "INT4": LayerFormat(INT4, INT4),
}

# The goals, from GOAL_TOKENS resident tokens on: least percent of the peak, and least speed-up over BF16.
GOAL_TOKENS = 32768
GOAL_PERCENT = {"BF16": 85.0, "INT8": 75.0, "INT4": 60.0}
GOAL_SPEEDUP = {"INT8": 1.5, "INT4": 2.5}

# What the format alone may change of attention over normal numbers: |difference| / |result|. 4 bits are off by a
# tenth of a standard deviation in each element, of keys and of values.
TOLERANCE = {"BF16": 0.01, "INT8": 0.03, "K8V4": 0.2, "INT4": 0.3}

# New tokens of each step that is checked: two chunks, and a decode.
CHECKED = (300, 77, 1)

# Bytes that a timed round reads, so that the last level cache (50 MB on an H200) holds little of the next one's.
ROUND_BYTES = 1 << 30


@dataclass(frozen=True)
class Shape:
    """Heads of a model's layer."""

    name: str
    query_heads: int
    kv_heads: int
    head_dim: int


SHAPES = (
    Shape("GQA-4 (Llama 3 8B)", 32, 8, 128),
    Shape("GQA-8 (Llama 3 70B)", 64, 8, 128),
    Shape("MHA (Llama 2 7B)", 32, 32, 128),
    Shape("GQA-3, head 64 (SmolLM2)", 9, 3, 64),
)
# (sequences, tokens of each)
LOADS = ((1, 4096), (1, 32768), (1, 131072), (8, 4096), (8, 32768), (32, 1024), (32, 4096), (128, 1024))


@dataclass(frozen=True)
class Row:
    """One measurement; speedup: over our own BF16 at the same load."""

    shape: str
    engine: str
    format: str
    sequences: int
    tokens: int
    microseconds: float
    gb_s: float
    percent_of_peak: float
    speedup: float | None = None


class Pool:
    """Layers of packed K and V, in blocks that lie in no order."""

    def __init__(
        self, shape: Shape, stored: LayerFormat, load: tuple[int, int], block: int, device: str = "cuda"
    ) -> None:
        self.shape, self.device, (sequences, tokens) = shape, device, load
        token_bytes = shape.kv_heads * sum(side.vector_bytes(shape.head_dim) for side in (stored.key, stored.value))
        self.layer_bytes = sequences * tokens * token_bytes
        self.layers = max(2, min(32, ROUND_BYTES // self.layer_bytes))
        table = TableLayout(tuple(range(self.layers)), None)
        recent = RECENT_TOKENS if stored.keeps_recent else 0
        self.layout = KvLayout(block, self.layers * block * token_bytes, (table,), tokens, recent)
        needed = self.layout.sequence_blocks(tokens)
        pool = KVPool.allocate(
            self.layout,
            [stored] * self.layers,
            num_blocks=sequences * needed,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            device=torch.device(device),
        )
        # Any bytes are levels; but as float16 and bfloat16 some are NaN or infinite, and 0x3c is neither.
        pool.storage.fill_(0x3C)
        order, own = torch.randperm(sequences * needed).tolist(), self.layout.recent_blocks
        rows = [order[i * needed : (i + 1) * needed] for i in range(sequences)]
        self.held = [HeldTable(row[own:], row[:own]) for row in rows]
        self.attention = TritonAttention(pool, query_heads=shape.query_heads, scale=shape.head_dim**-0.5)

    def tokens(self, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values of so many new tokens."""
        heads, dim = self.shape.kv_heads, self.shape.head_dim
        query = torch.randn(count, self.shape.query_heads, dim, device=self.device, dtype=torch.bfloat16)
        key, value = torch.randn(2, count, heads, dim, device=self.device, dtype=torch.bfloat16)
        return query, key, value


def sdpa(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, causal: bool = False) -> torch.Tensor:
    """Torch's attention over contiguous K and V, [sequences, heads, tokens, dim]."""
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=causal, enable_gqa=True)


def check(shape: Shape, name: str, block: int, device: str = "cuda") -> float:
    """How far a prefill in two chunks, and a decode, are from torch's attention over what was stored.

    Raises AssertionError beyond the format's tolerance.
    """
    torch.manual_seed(1)
    news = CHECKED
    pool = Pool(shape, FORMATS[name], (1, sum(news)), block, device)
    query, key, value = pool.tokens(sum(news))
    out, past = [], 0
    for new in news:
        rows = slice(past, past + new)
        step = pool.attention.plan([SequenceSpan([pool.held[0]], past, new)])
        out.append(step.run(1, query[rows], key[rows], value[rows]))
        past += new
    by_head = [side.float().transpose(0, 1)[None] for side in (query, key, value)]
    expected = sdpa(*by_head, causal=True)[0].transpose(0, 1)
    worst = 0.0
    for ours, theirs in zip(out, torch.split(expected, list(news)), strict=True):
        worst = max(worst, ((ours.float() - theirs).norm() / theirs.norm()).item())
    assert worst < TOLERANCE[name], f"{shape.name} {name}: off by {worst:.3f} of the result"
    return worst


def seconds(one_round: Callable[[], object], repeats: int = 10) -> float:
    """The median time of a round, replayed from a CUDA graph."""
    one_round()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        one_round()
    times = []
    for _ in range(repeats + 2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1000)
    return float(statistics.median(times[2:]))


def ours(shape: Shape, name: str, load: tuple[int, int], block: int, peak: float) -> Row:
    """Our kernels at one load."""
    pool = Pool(shape, FORMATS[name], load, block)
    step = pool.attention.plan([SequenceSpan([held], load[1] - 1, 1) for held in pool.held])
    query, key, value = pool.tokens(load[0])

    def one_round() -> None:
        for layer in range(pool.layers):
            step.run(layer, query, key, value)

    return row(shape, "kvtide", name, load, seconds(one_round) / pool.layers, pool.layer_bytes, peak)


def row(
    shape: Shape, engine: str, name: str, load: tuple[int, int], layer_s: float, layer_bytes: int, peak: float
) -> Row:
    """A measurement with its bandwidth."""
    gb_s = layer_bytes / layer_s / 1e9
    return Row(shape.name, engine, name, *load, layer_s * 1e6, gb_s, 100 * gb_s / peak)


def torch_round(shape: Shape, load: tuple[int, int], layers: int) -> Callable[[], object]:
    """Torch's attention over contiguous K and V."""
    sequences, tokens = load
    query = torch.randn(sequences, shape.query_heads, 1, shape.head_dim, device="cuda", dtype=torch.bfloat16)
    size = (layers, 2, sequences, shape.kv_heads, tokens, shape.head_dim)
    stored = torch.randn(size, device="cuda", dtype=torch.bfloat16)
    return lambda: [sdpa(query, layer[0], layer[1]) for layer in stored]


def flashinfer_round(shape: Shape, load: tuple[int, int], layers: int) -> Callable[[], object]:
    """FlashInfer's paged decode, pages of 16 tokens."""
    import flashinfer  # type: ignore[import-not-found]

    sequences, tokens = load
    pages = tokens // 16
    size = (layers, sequences * pages, 2, 16, shape.kv_heads, shape.head_dim)
    stored = torch.randn(size, device="cuda", dtype=torch.bfloat16)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        torch.empty(128 << 20, dtype=torch.uint8, device="cuda"), "NHD", use_tensor_cores=True
    )
    wrapper.plan(
        torch.arange(sequences + 1, dtype=torch.int32, device="cuda") * pages,
        torch.randperm(sequences * pages, device="cuda").int(),
        torch.full((sequences,), 16, dtype=torch.int32, device="cuda"),
        shape.query_heads,
        shape.kv_heads,
        shape.head_dim,
        16,
        q_data_type=torch.bfloat16,
        kv_data_type=torch.bfloat16,
    )
    query = torch.randn(sequences, shape.query_heads, shape.head_dim, device="cuda", dtype=torch.bfloat16)
    return lambda: [wrapper.run(query, layer) for layer in stored]


def vllm_round(shape: Shape, load: tuple[int, int], layers: int) -> Callable[[], object]:
    """FlashAttention over pages, as vLLM builds it, pages of 16 tokens."""
    from vllm.vllm_flash_attn import flash_attn_varlen_func  # type: ignore[import-not-found]

    sequences, tokens = load
    pages = tokens // 16
    size = (layers, 2, sequences * pages, 16, shape.kv_heads, shape.head_dim)
    stored = torch.randn(size, device="cuda", dtype=torch.bfloat16)
    table = torch.randperm(sequences * pages, device="cuda").int().view(sequences, pages)
    starts = torch.arange(sequences + 1, dtype=torch.int32, device="cuda")
    lengths = torch.full((sequences,), tokens, dtype=torch.int32, device="cuda")
    query = torch.randn(sequences, shape.query_heads, shape.head_dim, device="cuda", dtype=torch.bfloat16)

    def attend(layer: torch.Tensor) -> Any:
        return flash_attn_varlen_func(
            query,
            layer[0],
            layer[1],
            max_seqlen_q=1,
            cu_seqlens_q=starts,
            max_seqlen_k=tokens,
            seqused_k=lengths,
            softmax_scale=shape.head_dim**-0.5,
            causal=True,
            block_table=table,
        )

    return lambda: [attend(layer) for layer in stored]


ENGINES = {"torch SDPA": torch_round, "FlashInfer": flashinfer_round, "vLLM": vllm_round}


def theirs(shape: Shape, load: tuple[int, int], peak: float, failures: dict[str, str]) -> Iterator[Row]:
    """The other engines at one load, in bfloat16; one that fails is told of, and not asked again."""
    layer_bytes = load[0] * load[1] * shape.kv_heads * shape.head_dim * 4
    layers = max(2, min(32, ROUND_BYTES // layer_bytes))
    for engine, rounds in ENGINES.items():
        if engine in failures:
            continue
        try:
            layer_s = seconds(rounds(shape, load, layers)) / layers
        except Exception as error:  # another project's error may be of any kind
            failures[engine] = f"{type(error).__name__}: {error}"[:300]
            continue
        yield row(shape, engine, "BF16", load, layer_s, layer_bytes, peak)


def peak_gb_s(asked: float | None) -> float:
    """The device's peak by the vendor's data sheet, in GB/s. Raises SystemExit for a device that is not built in."""
    name = name_of_product(torch.cuda.get_device_name())
    if asked is None and name is None:
        raise SystemExit(f"no peak is known of '{torch.cuda.get_device_name()}'; give it with --peak in GB/s")
    return asked if asked is not None else float(GPUS[str(name)].bandwidth_gb_per_s)


def missed(rows: list[Row]) -> list[str]:
    """The goals that were not reached, in words."""
    found = []
    for one in rows:
        if one.engine != "kvtide" or one.sequences * one.tokens < GOAL_TOKENS:
            continue
        where = f"{one.shape}, {one.sequences} x {one.tokens}, {one.format}"
        if one.percent_of_peak < GOAL_PERCENT.get(one.format, 0):
            found.append(f"{where}: {one.percent_of_peak:.0f} % of peak, goal {GOAL_PERCENT[one.format]:.0f} %")
        if one.speedup is not None and one.speedup < GOAL_SPEEDUP.get(one.format, 0):
            found.append(f"{where}: {one.speedup:.2f} times BF16, goal {GOAL_SPEEDUP[one.format]}")
    return found


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu_attention.json"), help="where the JSON goes")
    parser.add_argument("--peak", type=float, help="peak memory bandwidth in GB/s, where the device is not known")
    parser.add_argument("--block", type=int, default=64, help="tokens of a block")
    parser.add_argument("--quick", action="store_true", help="one shape, three loads")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Check, measure, print, and write the record."""
    options = parse(arguments)
    if not torch.cuda.is_available():
        raise SystemExit("no CUDA device: this benchmark measures a GPU, and estimates nothing without one")
    peak = peak_gb_s(options.peak)
    shapes, loads = (SHAPES[:1], LOADS[1:5:2]) if options.quick else (SHAPES, LOADS)
    errors = {f"{shape.name} {name}": check(shape, name, options.block) for shape in shapes for name in FORMATS}
    rows: list[Row] = []
    failures: dict[str, str] = {}
    print(f"{torch.cuda.get_device_name()}, peak {peak:.0f} GB/s; goals from {GOAL_TOKENS} resident tokens on:")
    print(f"  % of peak {GOAL_PERCENT}, times BF16 {GOAL_SPEEDUP}")
    for shape in shapes:
        for load in loads:
            plain = None
            for name in FORMATS:
                one = ours(shape, name, load, options.block, peak)
                plain = plain or one.microseconds
                rows.append(Row(**(asdict(one) | {"speedup": plain / one.microseconds})))
                torch.cuda.empty_cache()
            rows += theirs(shape, load, peak, failures)
            torch.cuda.empty_cache()
            for one in rows[-len(FORMATS) - len(ENGINES) + len(failures) :]:
                speedup = f"{one.speedup:5.2f}x" if one.speedup else "      "
                print(
                    f"{one.shape:26}{one.sequences:4d} x {one.tokens:<7d}{one.engine:11}{one.format:5}"
                    f"{one.microseconds:9.1f} us {one.gb_s:7.0f} GB/s {one.percent_of_peak:5.1f} % {speedup}",
                    flush=True,
                )
    for engine, why in failures.items():
        print(f"{engine} did not run: {why}")
    for line in missed(rows) or ["every goal is reached"]:
        print(line)
    record = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "peak_gb_s": peak,
        "block_size": options.block,
        "error_against_torch": errors,
        "not_run": failures,
        "missed": missed(rows),
        "rows": [asdict(one) for one in rows],
    }
    options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
