"""A layer as it is launched: its arenas, and every constant that its kernels are compiled with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from kvtide_kernels.key_basis import KeyBasis
from kvtide_kernels.pool import KVPool
from kvtide_kernels.triton.arena import Arena
from kvtide_kernels.triton.shapes import Launch, PrefillLaunch, decode_launch, padded, prefill_launch


@dataclass(frozen=True)
class Scoring:
    """How scores become weights.

    scale: what they are multiplied with; soft_cap: cap * tanh(score / cap), or None; math: as `tiles` says
    """

    scale: float
    soft_cap: float | None
    math: str


@dataclass(frozen=True)
class KernelLayer:
    """One layer of a pool, made once: nothing of it is worked out again in a step.

    sinks:      float32 [query_heads], a logit each that joins the softmax's sum only
    recent:     tokens that it keeps in BF16; 0 for none
    sides:      constants of every kernel that reads or writes the arenas
    constants:  of those that attend, these included
    """

    key: Arena
    value: Arena
    table: int
    sinks: torch.Tensor | None
    basis: KeyBasis | None
    recent: int
    decode: Launch
    prefill: PrefillLaunch
    sides: dict[str, Any]
    constants: dict[str, Any]

    @classmethod
    def of(
        cls,
        pool: KVPool,
        layer: int,
        group: int,
        scoring: Scoring,
        *,
        hopper: bool,
        sinks: torch.Tensor | None,
        basis: KeyBasis | None,
    ) -> KernelLayer:
        """The layer of that number. Raises ValueError as `Arena`."""
        stored, block_size = pool.layers[layer], pool.layout.block_size
        key = Arena(stored.format.key, pool.head_dim, block_size, stored.key)
        value = Arena(stored.format.value, pool.head_dim, block_size, stored.value)
        recent = pool.layout.recent_of(stored.format)
        sides = {
            "KV_HEADS": pool.kv_heads,
            "DIM": pool.head_dim,
            "WIDTH": padded(pool.head_dim),
            "BLOCK": block_size,
            "KEY_BITS": key.format.bits,
            "KEY_HEAD_STRIDE": key.head_stride,
            "VALUE_BITS": value.format.bits,
            "VALUE_HEAD_STRIDE": value.head_stride,
            "VALUE_RUN": value.rotation,
            "RECENT": recent,
            "RECENT_ROWS": pool.layout.recent_per_block,
        }
        attends = {
            "GROUP": group,
            "RECENT_BLOCKS": pool.layout.recent_blocks,
            "CAPPED": scoring.soft_cap is not None,
            "SINKS": sinks is not None,
            "MATH": scoring.math,
        }
        return cls(
            key,
            value,
            stored.table,
            sinks,
            basis,
            recent,
            decode_launch(stored.format, pool.head_dim),
            prefill_launch(group, stored.format, pool.head_dim, hopper=hopper),
            sides,
            sides | attends,
        )
