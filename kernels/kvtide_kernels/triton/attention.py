"""The Triton backend: it plans a step on the host, and launches two to four kernels in each layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kvtide_kernels.attention import SequenceSpan
from kvtide_kernels.triton.arena import Arena
from kvtide_kernels.triton.decode import decode_kernel, reduce_kernel
from kvtide_kernels.triton.plan import Grid, TablePlan, plan_tables
from kvtide_kernels.triton.prefill import prefill_kernel
from kvtide_kernels.triton.shapes import PrefillLaunch, decode_launch, padded, prefill_launch
from kvtide_kernels.triton.write import write_kernel
from kvtide_sizing.memory.kv import KvLayout

# Programs of the decode kernel that a multiprocessor holds at once: what its registers and shared memory allow.
PROGRAMS_PER_PROCESSOR = 3

# Items that a program of the reduce kernel loads together.
REDUCE_PARTS = 16


@dataclass(frozen=True)
class LayerCache:
    """Where one layer's keys and values lie, and what its attention adds.

    table: which of the layout's tables serves it; sinks: [query_heads], a logit that joins the softmax's sum only
    """

    key: Arena
    value: Arena
    table: int
    sinks: torch.Tensor | None = None


@dataclass(frozen=True)
class Heads:
    """query: heads of a token; scale: what scores are multiplied with; soft_cap: cap * tanh(score / cap), or None."""

    query: int
    scale: float
    soft_cap: float | None = None


class TritonAttention:
    """Paged attention by Triton kernels over packed arenas, in bfloat16.

    programs: of the decode kernel that the device runs at once; by default what an NVIDIA or AMD device tells of itself

    Raises ValueError where layers differ in heads or head size, the heads do not divide, or a layer names no table.
    """

    def __init__(
        self, layout: KvLayout, layers: Sequence[LayerCache], heads: Heads, *, programs: int | None = None
    ) -> None:
        shapes = {(one.kv_heads, one.head_dim, one.block_size) for cache in layers for one in _sides(cache)}
        if len(shapes) != 1:
            raise ValueError(
                "the Triton kernels serve layers that are alike in KV heads, head size and block size, keys and "
                f"values too, but these have {sorted(shapes)}"
            )
        kv_heads, head_dim, block_size = shapes.pop()
        if block_size != layout.block_size:
            raise ValueError(f"the arenas have blocks of {block_size} tokens, but the layout of {layout.block_size}")
        if heads.query % kv_heads:
            raise ValueError(f"{heads.query} query heads are no multiple of {kv_heads} KV heads")
        unknown = [cache.table for cache in layers if not 0 <= cache.table < len(layout.tables)]
        if unknown:
            raise ValueError(f"a layer is served by table {unknown[0]}, but the layout has {len(layout.tables)}")
        self.layout, self.layers, self.heads = layout, tuple(layers), heads
        self.kv_heads, self.head_dim, self.group = kv_heads, head_dim, heads.query // kv_heads
        self.device = layers[0].key.storage.device
        self.math = arithmetic(self.device)
        self._hopper = self.math == "ptx" and torch.cuda.get_device_capability(self.device)[0] == 9
        self._programs = programs or PROGRAMS_PER_PROCESSOR * _processors(self.device)

    def plan(self, spans: Sequence[SequenceSpan]) -> TritonAttentionStep:
        """As `PagedAttention.plan`."""
        first = self.layers[0]
        launch = decode_launch(first.key.shape, first.value.shape)
        grid = Grid(
            heads=self.kv_heads * -(-self.group // launch.rows),
            programs=self._programs,
            prefill_tokens=self.prefill_size(first).tokens,
        )
        tables = plan_tables(spans, self.layout, grid, self.device)
        parts = max((len(table.decodes) for table in tables if table.parts is not None), default=0) * self.heads.query
        part_values = torch.empty(parts, self.head_dim, dtype=torch.float32, device=self.device)
        part_tops, part_totals = torch.empty(2, parts, dtype=torch.float32, device=self.device)
        return TritonAttentionStep(self, tables, part_values, part_tops, part_totals)

    def prefill_size(self, cache: LayerCache) -> PrefillLaunch:
        """The prefill kernel's size for a layer on this device."""
        return prefill_launch(self.group, cache.key.shape, cache.value.shape, hopper=self._hopper)


def arithmetic(device: torch.device) -> str:
    """How the kernels unpack and multiply on a device (`tiles`); on the CPU that is Triton's interpreter."""
    if device.type == "cpu":
        return "float32"
    return "plain" if torch.version.hip else "ptx"


def _sides(cache: LayerCache) -> tuple[Any, Any]:
    return cache.key.shape, cache.value.shape


def _processors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 1


@dataclass(frozen=True)
class TritonAttentionStep:
    """A planned step: `run` launches kernels and allocates what it returns, and asks the device for nothing.

    part_*: sums of split decodes, one layer after another
    """

    attention: TritonAttention
    tables: tuple[TablePlan, ...]
    part_values: torch.Tensor
    part_tops: torch.Tensor
    part_totals: torch.Tensor

    def run(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        rotary: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """As `AttentionStep.run`.

        rotary: cosines and signed sines [tokens, 1, head_dim] or [tokens, head_dim], contiguous, where RoPE has not
        been applied to query and key yet. A token's heads lie side by side in query, key and value.
        """
        attention, cache = self.attention, self.attention.layers[layer]
        plan = self.tables[cache.table]
        seen, fresh_key, packed_query = self._write(cache, plan, query, key, value, rotary)
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        sinks = out if cache.sinks is None else cache.sinks
        common = self._constants(cache) | {"SINKS": cache.sinks is not None}
        scale, cap = self._scales()
        if len(plan.decodes):
            launch = decode_launch(cache.key.shape, cache.value.shape)
            split = plan.parts is not None
            decode_kernel[(attention.kv_heads * -(-attention.group // launch.rows), len(plan.decodes))](
                packed_query,
                cache.key.storage,
                cache.value.storage,
                plan.tables,
                plan.decodes,
                sinks,
                out,
                self.part_values if split else out,
                self.part_tops if split else out,
                self.part_totals if split else out,
                packed_query.stride(0),
                plan.tables.stride(0),
                scale,
                cap,
                M=launch.rows,
                TILE=launch.tile,
                SPLIT=split,
                num_warps=launch.warps,
                num_stages=launch.stages,
                **common,
            )
            if plan.parts is not None:
                reduce_kernel[(attention.heads.query, len(plan.parts))](
                    self.part_values,
                    self.part_tops,
                    self.part_totals,
                    plan.parts,
                    sinks,
                    out,
                    HEADS=attention.heads.query,
                    DIM=attention.head_dim,
                    WIDTH=padded(attention.head_dim),
                    PARTS=REDUCE_PARTS,
                    VALUE_RUN=cache.value.shape.rotation,
                    SINKS=cache.sinks is not None,
                    num_warps=4,
                )
        if len(plan.prefills):
            window = attention.layout.tables[cache.table].window
            size = attention.prefill_size(cache)
            prefill_kernel[(attention.kv_heads * -(-attention.group // size.heads), len(plan.prefills))](
                seen,
                packed_query,
                fresh_key,
                value,
                cache.key.storage,
                cache.value.storage,
                plan.tables,
                plan.prefills,
                sinks,
                out,
                seen.stride(0),
                packed_query.stride(0),
                fresh_key.stride(0),
                value.stride(0),
                plan.tables.stride(0),
                scale,
                cap,
                0 if window is None else window,
                HEADS=size.heads,
                M=size.launch.rows,
                TILE=size.launch.tile,
                WINDOWED=window is not None,
                num_warps=size.launch.warps,
                num_stages=size.launch.stages,
                **common,
            )
        return out

    def _write(
        self,
        cache: LayerCache,
        plan: TablePlan,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Launch the write; what attention then reads: queries, new keys, and queries as they meet packed keys."""
        attention, tokens = self.attention, len(query)
        rotated, prefills = cache.key.shape.rotation > 0, len(plan.prefills) > 0
        turn_query = rotary is not None and (prefills or not rotated)
        turn_key = rotary is not None and prefills
        turned_query = torch.empty(query.shape, dtype=query.dtype, device=query.device) if turn_query else query
        turned_key = torch.empty(key.shape, dtype=key.dtype, device=key.device) if turn_key else key
        packed_query = torch.empty(query.shape, dtype=query.dtype, device=query.device) if rotated else turned_query
        cos, sin = rotary if rotary is not None else (query, query)
        query_programs = attention.heads.query if turn_query or rotated else 0
        rows = 1 if tokens <= 256 else 4
        write_kernel[(-(-tokens // rows), attention.kv_heads + query_programs)](
            query,
            key,
            value,
            cos,
            sin,
            plan.slots,
            cache.key.storage,
            cache.value.storage,
            turned_query,
            turned_key,
            packed_query,
            tokens,
            query.stride(0),
            key.stride(0),
            value.stride(0),
            KV_HEADS=attention.kv_heads,
            QUERY_HEADS=attention.heads.query,
            DIM=attention.head_dim,
            WIDTH=padded(attention.head_dim),
            ROWS=rows,
            BLOCK=attention.layout.block_size,
            KEY_BITS=cache.key.shape.bits,
            KEY_HEAD_BYTES=cache.key.shape.head_bytes,
            KEY_RUN=cache.key.shape.rotation,
            VALUE_BITS=cache.value.shape.bits,
            VALUE_HEAD_BYTES=cache.value.shape.head_bytes,
            VALUE_RUN=cache.value.shape.rotation,
            ROPE=rotary is not None,
            TURN_QUERY=turn_query,
            TURN_KEY=turn_key,
            num_warps=1,
        )
        return turned_query, turned_key, packed_query

    def _constants(self, cache: LayerCache) -> dict[str, Any]:
        attention = self.attention
        return {
            "KV_HEADS": attention.kv_heads,
            "GROUP": attention.group,
            "DIM": attention.head_dim,
            "WIDTH": padded(attention.head_dim),
            "BLOCK": attention.layout.block_size,
            "KEY_BITS": cache.key.shape.bits,
            "KEY_HEAD_BYTES": cache.key.shape.head_bytes,
            "VALUE_BITS": cache.value.shape.bits,
            "VALUE_HEAD_BYTES": cache.value.shape.head_bytes,
            "VALUE_RUN": cache.value.shape.rotation,
            "CAPPED": attention.heads.soft_cap is not None,
            "MATH": attention.math,
        }

    def _scales(self) -> tuple[float, float]:
        heads = self.attention.heads
        log2e = math.log2(math.e)
        if heads.soft_cap is None:
            return heads.scale * log2e, 0.0
        return heads.scale / heads.soft_cap, heads.soft_cap * log2e
