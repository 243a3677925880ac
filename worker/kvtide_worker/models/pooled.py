"""A checkpoint whose KV heads are pooled: each group of them becomes one, their mean."""

from __future__ import annotations

import dataclasses

import torch

from kvtide_sizing.errors import InvalidPlan
from kvtide_worker.models.checkpoint import Checkpoint
from kvtide_worker.models.chunks import row_chunks
from kvtide_worker.models.config import ModelConfig

_KEYS_OR_VALUES = ("k_proj", "v_proj")
_ALL_HEADS = "qkv_proj"


class PooledCheckpoint:
    """As the checkpoint, with fewer KV heads: mean pooling, as in GQA (https://arxiv.org/abs/2305.13245, section 2.1).

    The heads of a group are neighbours, which neighbouring query heads share before and after. Without training what is
    lost is large, but where the heads of a group are alike.

    Raises InvalidPlan where the model's KV heads make no kv_heads groups of one size.
    """

    def __init__(self, checkpoint: Checkpoint, kv_heads: int) -> None:
        native = checkpoint.config.kv_heads
        if kv_heads < 1 or native % kv_heads:
            works = ", ".join(str(heads) for heads in range(1, native + 1) if native % heads == 0)
            raise InvalidPlan(f"{native} KV heads make no {kv_heads} groups of one size; plan for one of {works}")
        self._checkpoint, self._native = checkpoint, native
        self.config: ModelConfig = dataclasses.replace(checkpoint.config, kv_heads=kv_heads)

    def shape(self, name: str) -> tuple[int, ...]:
        """As `Checkpoint.shape`."""
        rows, *rest = self._checkpoint.shape(name)
        return (rows - self._pooled_rows(name) * (self._group - 1), *rest)

    def read(self, name: str, out: torch.Tensor) -> None:
        """As `Checkpoint.read`; a matrix of keys and values is there twice meanwhile, in out's dtype."""
        if not self._pooled_rows(name):
            self._checkpoint.read(name, out)
            return
        native = out.new_empty(self._checkpoint.shape(name))
        self._checkpoint.read(name, native)
        queries = len(out) - self._pooled_rows(name)
        out[:queries] = native[:queries]
        head_dim, pooled = self.config.head_dim, out[queries:]
        groups = native[queries:].view(-1, self._group, head_dim, *out.shape[1:])
        for rows in row_chunks(tuple(pooled.shape), together=head_dim):
            heads = slice(rows.start // head_dim, rows.stop // head_dim)
            pooled[rows] = groups[heads].mean(dim=1, dtype=torch.float32).flatten(0, 1).to(out.dtype)

    @property
    def _group(self) -> int:
        return self._native // self.config.kv_heads

    def _pooled_rows(self, name: str) -> int:
        """How many rows of a pooled tensor are of pooled heads; they stand behind its queries, where it has some."""
        part = name.rsplit(".", 2)[-2]
        rows = self.config.kv_heads * self.config.head_dim
        return rows if part in _KEYS_OR_VALUES else 2 * rows if part == _ALL_HEADS else 0
