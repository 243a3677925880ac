"""A planned step: two to five kernels in each layer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from kvtide_kernels.triton.decode import decode_kernel, reduce_kernel
from kvtide_kernels.triton.layer import KernelLayer
from kvtide_kernels.triton.plan import TablePlan
from kvtide_kernels.triton.prefill import prefill_kernel
from kvtide_kernels.triton.recent import keep_recent_kernel
from kvtide_kernels.triton.shapes import padded
from kvtide_kernels.triton.write import write_kernel

if TYPE_CHECKING:
    from kvtide_kernels.triton.attention import TritonAttention

# Items that a program of the reduce kernel loads together.
REDUCE_PARTS = 16

Rotary = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Parts:
    """Sums of split decodes, of one layer after another: values float32 [items * query_heads, head_dim], the others
    float32 [items * query_heads].
    """

    values: torch.Tensor
    tops: torch.Tensor
    totals: torch.Tensor

    @classmethod
    def empty(cls, parts: int, head_dim: int, device: torch.device) -> Parts:
        """Room for so many."""
        tops, totals = torch.empty(2, parts, dtype=torch.float32, device=device)
        return cls(torch.empty(parts, head_dim, dtype=torch.float32, device=device), tops, totals)


@dataclass(frozen=True)
class _Written:
    """What attention reads once a layer's new tokens are written: queries as they meet keys that are not rotated, as
    they meet packed ones, and new keys.
    """

    query: torch.Tensor
    packed_query: torch.Tensor
    key: torch.Tensor


@dataclass(frozen=True)
class TritonAttentionStep:
    """A planned step: `run` launches kernels and allocates what it returns, and asks the device for nothing."""

    attention: TritonAttention
    tables: tuple[TablePlan, ...]
    parts: Parts

    def run(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, rotary: Rotary | None = None
    ) -> torch.Tensor:
        """As `AttentionStep.run`.

        rotary: cosines and signed sines [tokens, 1, head_dim] or [tokens, head_dim], contiguous, where RoPE has not
        been applied to query and key yet. Raises ValueError where a token's heads do not lie side by side in query, key
        or value.
        """
        of_layer = self.attention.layers[layer]
        plan = self.tables[of_layer.table]
        if of_layer.basis is not None:
            if rotary is not None:
                query, key, rotary = _turned(query, rotary), _turned(key, rotary), None
            # A product may lie head by head.
            query, key = of_layer.basis.queries(query).contiguous(), of_layer.basis.keys(key).contiguous()
        _check_strides(query, key, value)
        written = self._write(of_layer, plan, query, key, value, rotary)
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        if len(plan.decodes):
            self._decode(of_layer, plan, written, out)
        if len(plan.prefills):
            self._prefill(of_layer, plan, written, value, out)
        return out

    def _decode(self, layer: KernelLayer, plan: TablePlan, written: _Written, out: torch.Tensor) -> None:
        attention, parts, sinks = self.attention, self.parts, out if layer.sinks is None else layer.sinks
        decode_kernel[(attention.grid.heads, len(plan.decodes))](
            written.query,
            written.packed_query,
            layer.key.storage,
            layer.value.storage,
            plan.tables,
            plan.recent_tables,
            plan.decodes,
            sinks,
            out,
            parts.values,
            parts.tops,
            parts.totals,
            written.query.stride(0),
            written.packed_query.stride(0),
            plan.tables.stride(0),
            *self._scales(),
            M=layer.decode.rows,
            TILE=layer.decode.tile,
            SPLIT=len(plan.parts) > 0,
            num_warps=layer.decode.warps,
            num_stages=layer.decode.stages,
            **layer.constants,
        )
        if not len(plan.parts):
            return
        reduce_kernel[(attention.query_heads, len(plan.parts))](
            parts.values,
            parts.tops,
            parts.totals,
            plan.parts,
            sinks,
            out,
            HEADS=attention.query_heads,
            DIM=attention.pool.head_dim,
            WIDTH=padded(attention.pool.head_dim),
            PARTS=REDUCE_PARTS,
            VALUE_RUN=layer.value.rotation,
            SINKS=layer.sinks is not None,
            num_warps=4,
        )

    def _prefill(
        self, layer: KernelLayer, plan: TablePlan, written: _Written, value: torch.Tensor, out: torch.Tensor
    ) -> None:
        attention, size = self.attention, layer.prefill
        window = attention.pool.layout.tables[layer.table].window
        prefill_kernel[(attention.pool.kv_heads * -(-attention.group // size.heads), len(plan.prefills))](
            written.query,
            written.packed_query,
            written.key,
            value,
            layer.key.storage,
            layer.value.storage,
            plan.tables,
            plan.recent_tables,
            plan.prefills,
            out if layer.sinks is None else layer.sinks,
            out,
            written.query.stride(0),
            written.packed_query.stride(0),
            written.key.stride(0),
            value.stride(0),
            plan.tables.stride(0),
            *self._scales(),
            0 if window is None else window,
            HEADS=size.heads,
            M=size.launch.rows,
            TILE=size.launch.tile,
            WINDOWED=window is not None,
            num_warps=size.launch.warps,
            num_stages=size.launch.stages,
            **layer.constants,
        )
        if layer.recent:
            keep_recent_kernel[(attention.pool.kv_heads, len(plan.prefills))](
                written.key,
                value,
                layer.key.storage,
                layer.value.storage,
                plan.recent_tables,
                plan.prefills,
                written.key.stride(0),
                value.stride(0),
                KV_HEADS=attention.pool.kv_heads,
                DIM=attention.pool.head_dim,
                WIDTH=padded(attention.pool.head_dim),
                KEY_HEAD_STRIDE=layer.key.head_stride,
                VALUE_HEAD_STRIDE=layer.value.head_stride,
                RECENT=layer.recent,
                RECENT_ROWS=attention.pool.layout.recent_per_block,
                RECENT_BLOCKS=attention.pool.layout.recent_blocks,
                num_warps=4,
            )

    def _write(
        self,
        layer: KernelLayer,
        plan: TablePlan,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        rotary: Rotary | None,
    ) -> _Written:
        attention, tokens = self.attention, len(query)
        rotated, prefills = layer.key.rotation > 0, len(plan.prefills) > 0
        turn_query = rotary is not None and (prefills or not rotated or layer.recent > 0)
        turn_key = rotary is not None and prefills
        turned_query = torch.empty(query.shape, dtype=query.dtype, device=query.device) if turn_query else query
        turned_key = torch.empty(key.shape, dtype=key.dtype, device=key.device) if turn_key else key
        packed_query = torch.empty(query.shape, dtype=query.dtype, device=query.device) if rotated else turned_query
        cos, sin = rotary if rotary is not None else (query, query)
        query_programs = attention.query_heads if turn_query or rotated else 0
        rows = 1 if tokens <= 256 else 4
        write_kernel[(-(-tokens // rows), attention.pool.kv_heads + query_programs)](
            query,
            key,
            value,
            cos,
            sin,
            plan.slots,
            plan.recent_slots,
            layer.key.storage,
            layer.value.storage,
            turned_query,
            turned_key,
            packed_query,
            tokens,
            query.stride(0),
            key.stride(0),
            value.stride(0),
            QUERY_HEADS=attention.query_heads,
            ROWS=rows,
            KEY_RUN=layer.key.rotation,
            ROPE=rotary is not None,
            TURN_QUERY=turn_query,
            TURN_KEY=turn_key,
            num_warps=1,
            **layer.sides,
        )
        return _Written(turned_query, packed_query, turned_key)

    def _scales(self) -> tuple[float, float]:
        """Of scores, and of their cap, in units of log2: as `logits` takes them."""
        scoring, log2e = self.attention.scoring, math.log2(math.e)
        if scoring.soft_cap is None:
            return scoring.scale * log2e, 0.0
        return scoring.scale / scoring.soft_cap, scoring.soft_cap * log2e


def _check_strides(*sides: torch.Tensor) -> None:
    for name, side in zip(("query", "key", "value"), sides, strict=True):
        if side.stride(2) != 1 or (side.shape[1] > 1 and side.stride(1) != side.shape[2]):
            raise ValueError(
                f"a token's heads lie side by side, but {name} {list(side.shape)} has strides {list(side.stride())}"
            )


def _turned(x: torch.Tensor, rotary: Rotary) -> torch.Tensor:
    """Heads [tokens, heads, head_dim] with RoPE, as the write kernel applies it."""
    cos, sin = (side.view(len(x), 1, -1).float() for side in rotary)
    wide = x.float()
    return (wide * cos + wide.roll(x.shape[-1] // 2, -1) * sin).to(x.dtype)
