"""The Triton backend: what a pool's layers are launched with, and a step planned on the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch

from kvtide_kernels.attention import SequenceSpan
from kvtide_kernels.key_basis import KeyBasis
from kvtide_kernels.pool import KVPool
from kvtide_kernels.triton.graph_plan import GraphPlan
from kvtide_kernels.triton.items import Grid
from kvtide_kernels.triton.layer import KernelLayer, Scoring
from kvtide_kernels.triton.plan import plans_in, table_arrays, to_host
from kvtide_kernels.triton.served import check_served
from kvtide_kernels.triton.step import Parts, TritonAttentionStep

# Programs of the decode kernel that a multiprocessor holds at once: what its registers and shared memory allow.
PROGRAMS_PER_PROCESSOR = 3


class TritonAttention:
    """Paged attention by Triton kernels over a pool, in bfloat16.

    query_heads:  of a token
    scale:        what scores are multiplied with
    soft_cap:     scores become soft_cap · tanh(score / soft_cap)
    sinks:        of a layer, float32 [query_heads]: a score each that joins the softmax's sum and has no value
    bases:        of a layer: what its keys are stored in
    programs:     of the decode kernel that the device runs at once; by default what an NVIDIA or AMD device tells of
                  itself

    Raises ValueError for a pool that the kernels do not serve, and where query heads are no multiple of the KV heads.
    """

    def __init__(
        self,
        pool: KVPool,
        *,
        query_heads: int,
        scale: float,
        soft_cap: float | None = None,
        sinks: Mapping[int, torch.Tensor] = MappingProxyType({}),
        bases: Mapping[int, KeyBasis] = MappingProxyType({}),
        programs: int | None = None,
    ) -> None:
        device = pool.storage.device
        check_served([layer.format for layer in pool.layers], pool.head_dim, pool.layout.block_size, device)
        if query_heads % pool.kv_heads:
            raise ValueError(f"{query_heads} query heads are no multiple of {pool.kv_heads} KV heads")
        self.pool, self.query_heads, self.group = pool, query_heads, query_heads // pool.kv_heads
        self.scoring = Scoring(scale, soft_cap, arithmetic(device))
        hopper = self.scoring.math == "ptx" and torch.cuda.get_device_capability(device)[0] == 9
        self.layers = tuple(
            KernelLayer.of(
                pool,
                layer,
                self.group,
                self.scoring,
                hopper=hopper,
                sinks=sinks.get(layer),
                basis=bases.get(layer),
            )
            for layer in range(len(pool.layers))
        )
        # Neither hangs on a layer's formats: layers of one table have their items in common.
        first = self.layers[0]
        self.grid = Grid(
            heads=pool.kv_heads * -(-self.group // first.decode.rows),
            programs=programs or PROGRAMS_PER_PROCESSOR * _processors(device),
            prefill_tokens=first.prefill.tokens,
        )

    def plan(self, spans: Sequence[SequenceSpan]) -> TritonAttentionStep:
        """As `PagedAttention.plan`."""
        layout, device = self.pool.layout, self.pool.storage.device
        arrays = [table_arrays(spans, number, layout, self.grid) for number in range(len(layout.tables))]
        plans = plans_in(to_host(arrays, device).to(device, non_blocking=True), arrays)
        items = max(len(plan.decodes) if len(plan.parts) else 0 for plan in plans)
        return TritonAttentionStep(self, plans, Parts.empty(items * self.query_heads, self.pool.head_dim, device))

    def graph_plan(self, *, sequences: int, tokens: int, split: bool | None = None) -> GraphPlan:
        """A plan of decodes that stays where it is, for CUDA graphs: `GraphPlan`."""
        return GraphPlan(self, sequences=sequences, tokens=tokens, split=split)


def arithmetic(device: torch.device) -> str:
    """How the kernels unpack and multiply on a device (`tiles`); on the CPU that is Triton's interpreter."""
    if device.type == "cpu":
        return "float32"
    return "plain" if torch.version.hip else "ptx"


def _processors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 1
