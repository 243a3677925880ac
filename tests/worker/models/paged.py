"""A model over a paged pool, as the engine runs it: the tables of a sequence hold blocks in no order."""

from __future__ import annotations

import torch

from kvtide_kernels.attention import SequenceSpan
from kvtide_kernels.pool import KVPool
from kvtide_kernels.torch_attention import TorchAttention
from kvtide_sizing.memory.kv import KvLayout, TableLayout
from kvtide_worker.models.checkpoint import Checkpoint
from kvtide_worker.models.config import ModelConfig
from kvtide_worker.models.model import load_model
from tests.kernels.paged import FORMATS, Held

CPU = torch.device("cpu")
BLOCK_SIZE = 16


def paged_pool(config: ModelConfig, *, num_blocks: int, dtype: torch.dtype) -> KVPool:
    """Blocks of 16 tokens; each layer has a table of its own, with its window."""
    block_bytes = BLOCK_SIZE * 2 * config.kv_heads * config.head_dim * dtype.itemsize
    tables = tuple(TableLayout((layer,), window) for layer, window in enumerate(config.windows))
    pool = KVPool.allocate(
        KvLayout(BLOCK_SIZE, block_bytes, tables, step_tokens=64),
        [FORMATS[dtype]] * config.num_layers,
        num_blocks=num_blocks,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        device=CPU,
    )
    pool.storage.view(dtype).fill_(float("nan"))
    return pool


def paged_logits(
    checkpoint: Checkpoint,
    tokens: torch.Tensor,
    chunks: list[int],
    *,
    dtype: torch.dtype = torch.float32,
    context_tokens: int | None = None,
) -> torch.Tensor:
    """Logits of every token, computed chunk by chunk through a paged pool."""
    model = load_model(checkpoint, dtype=dtype, device=CPU, context_tokens=context_tokens)
    tables = model.config.num_layers
    blocks = -(-len(tokens) // BLOCK_SIZE)
    pool = paged_pool(model.config, num_blocks=blocks * tables, dtype=dtype)
    attention = TorchAttention(pool, scale=model.config.attention_scale)
    ids = torch.randperm(blocks * tables, generator=torch.Generator().manual_seed(1)).tolist()
    held = [Held(ids[table::tables]) for table in range(tables)]
    logits, past = [], 0
    for new in chunks:
        step = attention.plan([SequenceSpan(held, past, new)])
        positions = torch.arange(past, past + new)
        logits.append(model.forward(tokens[past : past + new], positions, step, torch.arange(new)))
        past += new
    return torch.cat(logits)
