"""Which backend attends: by the device, and by how the pool stores keys and values."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal

import torch

from kvtide_kernels.attention import PagedAttention
from kvtide_kernels.cpu import arenas as cpu
from kvtide_kernels.cpu.attention import CpuAttention
from kvtide_kernels.cpu.library import library
from kvtide_kernels.key_basis import KeyBasis
from kvtide_kernels.pool import KVPool
from kvtide_kernels.torch_attention import TorchAttention
from kvtide_sizing.formats import BF16, FLOAT32, LayerFormat

Backend = Literal["torch", "cpu", "triton"]

logger = logging.getLogger(__name__)


def check_served(
    device: torch.device,
    formats: Sequence[LayerFormat],
    *,
    head_dim: int,
    query_heads: int,
    kv_heads: int,
    block_size: int,
) -> None:
    """Make sure that a pool of these formats can be attended to on the device; it may be asked before anything loads.

    block_size in tokens. On a CPU the kernels are compiled where they are not there yet, which takes a minute.
    Raises ValueError with what is asked, what is served and what would work.
    """
    if query_heads % kv_heads:
        raise ValueError(f"{query_heads} query heads are no multiple of {kv_heads} KV heads; they must be")
    _choose(device, formats, head_dim, block_size)


def attention_over(
    pool: KVPool, *, query_heads: int, scale: float, bases: Mapping[int, KeyBasis] = MappingProxyType({})
) -> PagedAttention:
    """The backend for a pool, by its device and formats. Where no kernel serves one in BF16 plain torch does, and the
    log says why.

    scale, bases: as every backend has them. Raises ValueError as `check_served`.
    """
    device, formats = pool.storage.device, [layer.format for layer in pool.layers]
    backend, why = _choose(device, formats, pool.head_dim, pool.layout.block_size)
    if why is not None:
        logger.warning("plain torch attends, slower and with more memory than the kernels that were planned: %s", why)
    if backend == "torch":
        return TorchAttention(pool, scale=scale)
    if backend == "cpu":
        return CpuAttention(pool, scale=scale, bases=bases)
    from kvtide_kernels.triton.attention import TritonAttention

    return TritonAttention(pool, query_heads=query_heads, scale=scale, bases=bases)


def _choose(
    device: torch.device, formats: Sequence[LayerFormat], head_dim: int, block_size: int
) -> tuple[Backend, str | None]:
    """The backend; and why it is plain torch, where that stands in for kernels."""
    sides = {side for each in formats for side in (each.key, each.value)}
    if sides == {FLOAT32}:
        return "torch", None
    try:
        return _kernels(device, formats, head_dim, block_size), None
    except (ValueError, RuntimeError, OSError) as error:
        if sides == {BF16}:
            return "torch", str(error)
        raise ValueError(f"{error}; BF16 would be attended to without kernels") from error


def _kernels(device: torch.device, formats: Sequence[LayerFormat], head_dim: int, block_size: int) -> Backend:
    """The device's kernels. Raises ValueError where they do not serve this, RuntimeError where they cannot be compiled,
    OSError where there is no place for them."""
    if device.type == "cuda":
        # Imported here: Triton is slow to import, and a worker on a CPU need not.
        from kvtide_kernels.triton.served import check_served as check_triton

        check_triton(formats, head_dim, block_size, device)
        return "triton"
    for each in formats:
        cpu.check_served(each.key, head_dim, block_size)
        cpu.check_served(each.value, head_dim, block_size)
    library()
    return "cpu"
