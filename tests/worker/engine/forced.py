"""A model that is told what to say: the logits of each place, through a pool."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import torch

from kvtide_kernels.attention import PagedAttention, SequenceSpan
from kvtide_kernels.backends import attention_over
from kvtide_kernels.pool import KVPool
from kvtide_kernels.reference import ReferenceAttention
from kvtide_sizing.formats import LayerFormat, Precision, layer_formats
from kvtide_sizing.memory.kv import kv_layout
from kvtide_sizing.shape import ModelShape
from kvtide_worker.engine.block_manager import BlockTable
from kvtide_worker.engine.key_bases import fit_key_bases
from kvtide_worker.models.model import Model

CPU = torch.device("cpu")
STEP_TOKENS = 512

Attention = Callable[["Forced", KVPool], PagedAttention]


def served(forced: Forced, pool: KVPool) -> PagedAttention:
    """What serves such a pool."""
    config = forced.model.config
    return attention_over(pool, query_heads=config.query_heads, scale=config.attention_scale, bases=forced.bases)


def reference(forced: Forced, pool: KVPool) -> PagedAttention:
    """What such a pool means."""
    scale = forced.model.config.attention_scale
    return ReferenceAttention(pool.layout, pool.layers, scale=scale, bases=forced.bases)


class Forced:
    """One model in one precision. Blocks are given out in no order; nobody gives any back."""

    def __init__(
        self, model: Model, shape: ModelShape, precision: str, calibration: Sequence[int], *, block_size: int = 16
    ) -> None:
        self.model = model
        formats = layer_formats(shape, Precision(precision))
        self.bases = fit_key_bases(model, formats, calibration, CPU)
        self.layout = kv_layout(shape, formats, block_size, STEP_TOKENS)
        self._formats: Sequence[LayerFormat] = formats

    def logits(self, tokens: Sequence[int], chunks: Sequence[int], attention: Attention = served) -> torch.Tensor:
        """Of every token, float32 [tokens, vocab]: chunks of these lengths, then one by one."""
        config, layout = self.model.config, self.layout
        blocks = -(-len(tokens) // layout.block_size)
        of_table = blocks + layout.recent_blocks
        pool = KVPool.allocate(
            layout,
            self._formats,
            num_blocks=of_table * len(layout.tables),
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            device=CPU,
        )
        pool.storage.fill_(255)  # NaN in BF16 and in float16: what nobody wrote must not be read
        attending = attention(self, pool)
        ids = torch.randperm(pool.num_blocks, generator=torch.Generator().manual_seed(1)).tolist()
        tables = [
            BlockTable(deque(own[:blocks]), 0, tuple(own[blocks:]))
            for own in (ids[start : start + of_table] for start in range(0, len(ids), of_table))
        ]
        given, rows, past = torch.tensor(tokens), [], 0
        for new in [*chunks, *[1] * (len(tokens) - sum(chunks))]:
            step = attending.plan([SequenceSpan(tables, past, new)])
            here = torch.arange(past, past + new)
            rows.append(self.model.forward(given[here], here, step, torch.arange(new)).float())
            past += new
        return torch.cat(rows)
