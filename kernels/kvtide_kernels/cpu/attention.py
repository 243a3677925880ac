"""Paged attention on the CPU: planning a step in Python, and running it in C++."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch

from kvtide_kernels.attention import SequenceSpan
from kvtide_kernels.cpu.arenas import check_pool, side_of
from kvtide_kernels.cpu.library import Basis, Layer, Library, Step, library
from kvtide_kernels.cpu.plan import TablePlan, plan_tables
from kvtide_kernels.key_basis import KeyBasis
from kvtide_kernels.pool import KVPool


class CpuAttentionStep:
    """A planned step.

    Between `plan` and the step's end it has the spans' block ids in int32, and from the first `run` on
    pieces · query_heads · (head_dim + 2) in float32, where decodes of more than SPLIT_TOKENS are cut into pieces.
    `run` takes its result. Each thread keeps under 1 MiB of its own for ever.
    """

    def __init__(self, attention: CpuAttention, tables: list[TablePlan], tokens: int) -> None:
        self._attention = attention
        self._tables = tables
        self._tokens = tokens
        slots = max(table.slots for table in tables)
        self._partial = torch.empty(0)
        self._arrived = torch.zeros(slots * attention.pool.kv_heads, dtype=torch.int32)

    def run(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """As `AttentionStep.run`, in bfloat16. Raises ValueError for tensors of another dtype or shape."""
        attention = self._attention
        pool = attention.pool
        table = self._tables[pool.layers[layer].table]
        kv_heads, head_dim = pool.kv_heads, pool.head_dim
        query_heads = query.shape[1]
        if (
            not (query.dtype == key.dtype == value.dtype == torch.bfloat16)
            or not key.shape == value.shape == (self._tokens, kv_heads, head_dim)
            or query.shape != (self._tokens, query_heads, head_dim)
        ):
            raise ValueError(
                f"the step has {self._tokens} tokens in torch.bfloat16 and {kv_heads} KV heads of {head_dim}; "
                f"query, key and value are {', '.join(f'{x.dtype} {list(x.shape)}' for x in (query, key, value))}"
            )
        query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
        needed = len(self._arrived) // kv_heads * query_heads * (head_dim + 2)
        if self._partial.numel() < needed:
            self._partial = torch.empty(needed)
        out = torch.empty_like(query)
        step = Step(
            ctypes.pointer(attention.structure(layer, query_heads)),
            table.spans.data_ptr(),
            table.units.data_ptr(),
            len(table.units),
            query.data_ptr(),
            key.data_ptr(),
            value.data_ptr(),
            out.data_ptr(),
            self._partial.data_ptr(),
            self._arrived.data_ptr(),
        )
        attention.library.run(step, torch.get_num_threads())
        return out


class CpuAttention:
    """Paged attention in C++ over a pool.

    scale:     what scores are multiplied with
    soft_cap:  scores become soft_cap · tanh(score / soft_cap)
    sinks:     of a layer, float32 [query_heads]: a score each that joins the softmax's sum and has no value
    bases:     of a layer: what its keys are stored in
    kernels:   the compiled library; the best one for this processor, where none is given

    Raises ValueError for a pool that the kernels do not serve, and for a centre of keys under a soft cap.
    """

    def __init__(
        self,
        pool: KVPool,
        *,
        scale: float,
        soft_cap: float | None = None,
        sinks: Mapping[int, torch.Tensor] = MappingProxyType({}),
        bases: Mapping[int, KeyBasis] = MappingProxyType({}),
        kernels: Library | None = None,
    ) -> None:
        check_pool(pool)
        if soft_cap and (moved := [layer for layer, basis in bases.items() if basis.centre.any()]):
            raise ValueError(
                f"the bases of the layers {moved} have a centre, which scores under a soft cap of {soft_cap} would "
                "lack; fit them with centred=False"
            )
        self.pool, self.sinks, self.bases = pool, sinks, bases
        self.library = kernels or library()
        self._scale, self._soft_cap = scale, soft_cap or 0.0
        self._structures: dict[tuple[int, int], Layer] = {}

    def structure(self, layer: int, query_heads: int) -> Layer:
        """The layer as the kernels take it. Raises ValueError where the query heads are no multiple of the KV heads."""
        known = self._structures.get((layer, query_heads))
        if known is not None:
            return known
        pool, stored = self.pool, self.pool.layers[layer]
        if query_heads < pool.kv_heads or query_heads % pool.kv_heads:
            raise ValueError(f"{query_heads} query heads are no multiple of {pool.kv_heads} KV heads")
        sinks = self.sinks.get(layer)
        if sinks is not None and (sinks.dtype != torch.float32 or sinks.shape != (query_heads,)):
            raise ValueError(f"sinks need float32 [{query_heads}], but are {sinks.dtype} {list(sinks.shape)}")
        made = Layer(
            side_of(stored.key, stored.format.key, pool.head_dim),
            side_of(stored.value, stored.format.value, pool.head_dim),
            _basis(self.bases[layer], pool) if layer in self.bases else Basis(),
            pool.kv_heads,
            query_heads // pool.kv_heads,
            pool.layout.block_size,
            pool.layout.tables[stored.table].window or 0,
            pool.layout.recent_of(stored.format),
            self._scale,
            self._soft_cap,
            sinks.data_ptr() if sinks is not None else None,
        )
        self._structures[layer, query_heads] = made
        return made

    def plan(self, spans: Sequence[SequenceSpan]) -> CpuAttentionStep:
        """As `PagedAttention.plan`."""
        for span in spans:
            span.check(self.pool.layout)
        plans = plan_tables(spans, self.pool.layout)
        return CpuAttentionStep(self, plans, sum(span.new_tokens for span in spans))


def _basis(basis: KeyBasis, pool: KVPool) -> Basis:
    matrix = (pool.kv_heads, pool.head_dim, pool.head_dim)
    for name, part, shape in (
        ("of_key", basis.of_key, matrix),
        ("of_query", basis.of_query, matrix),
        ("centre", basis.centre, matrix[:2]),
    ):
        if part.dtype != torch.float32 or part.shape != shape or not part.is_contiguous():
            raise ValueError(
                f"a basis' {name} needs to be contiguous float32 {list(shape)}, but is {part.dtype} {list(part.shape)} "
                f"with strides {part.stride()}"
            )
    return Basis(basis.of_key.data_ptr(), basis.of_query.data_ptr(), basis.centre.data_ptr())
