"""The forward pass against transformers, for every variant of the family that the configuration can say."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import pytest
import torch

from kvtide_kernels.attention import SequenceSpan
from kvtide_kernels.pool import KVPool
from kvtide_kernels.torch_attention import TorchAttention
from kvtide_sizing.memory.kv import KvLayout, TableLayout
from kvtide_worker.engine.block_manager import BlockTable
from kvtide_worker.models.checkpoint import Checkpoint, open_checkpoint
from kvtide_worker.models.config import ModelConfig
from kvtide_worker.models.llama import LlamaModel
from tests.worker.models.tiny import save_tiny_llama

CPU = torch.device("cpu")
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 1000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def paged_pool(config: ModelConfig, *, num_blocks: int, dtype: torch.dtype) -> KVPool:
    """Blocks of 16 tokens of all layers."""
    block_bytes = 16 * config.num_layers * 2 * config.kv_heads * config.head_dim * 2
    layout = KvLayout(16, block_bytes, (TableLayout(tuple(range(config.num_layers)), None),), step_tokens=64)
    return KVPool.allocate(
        layout, num_blocks=num_blocks, kv_heads=config.kv_heads, head_dim=config.head_dim, dtype=dtype, device=CPU
    )


def paged_logits(checkpoint: Checkpoint, tokens: torch.Tensor, chunks: list[int]) -> torch.Tensor:
    """Logits of every token, computed chunk by chunk through a paged pool, in float32."""
    model = LlamaModel(checkpoint, dtype=torch.float32, device=CPU)
    config = model.config
    pool = paged_pool(config, num_blocks=10, dtype=torch.float32)
    attention, table = TorchAttention(pool, scale=config.attention_scale), BlockTable(deque([7, 2, 9, 0, 4, 1, 3, 5]))
    logits, past = [], 0
    for new in chunks:
        step = attention.plan([SequenceSpan([table], past, new)])
        positions = torch.arange(past, past + new)
        logits.append(model.forward(tokens[past : past + new], positions, step, torch.arange(new)))
        past += new
    return torch.cat(logits)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_word_embeddings": True},
        {"num_key_value_heads": 4},
        {"num_key_value_heads": 1},
        {"head_dim": 32},  # not hidden_size / heads
        {"rms_norm_eps": 0.1},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 4.0}},
        {"rope_parameters": LLAMA3_ROPE},
    ],
    ids=lambda changes: "-".join(map(str, changes)) or "plain",
)
def test_logits_equal_transformers(tmp_path: Path, changes: dict[str, Any]) -> None:
    reference = save_tiny_llama(tmp_path, **changes)
    tokens = torch.randint(0, 320, (100,))
    with torch.inference_mode():
        expected = reference(tokens[None]).logits[0]
    logits = paged_logits(open_checkpoint(tmp_path), tokens, chunks=[40, 1, 1, 57, 1])
    # float32 sums in another order: logits are up to ~60 here.
    torch.testing.assert_close(logits, expected, atol=2e-4, rtol=1e-5)


def test_only_wanted_rows_have_logits(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    model = LlamaModel(open_checkpoint(tmp_path), dtype=torch.bfloat16, device=CPU)
    attention = TorchAttention(paged_pool(model.config, num_blocks=2, dtype=torch.bfloat16), scale=0.25)
    step = attention.plan([SequenceSpan([BlockTable(deque([1, 0]))], 0, 20)])
    for wanted in ([], [19], [3, 19]):
        logits = model.forward(torch.arange(20), torch.arange(20), step, torch.tensor(wanted, dtype=torch.int64))
        assert (logits.shape, logits.dtype) == ((len(wanted), 320), torch.bfloat16)


def test_weights_bytes(tmp_path: Path) -> None:
    """2 bytes a parameter, by transformers' count; tied embeddings count once."""
    for tied in (False, True):
        reference = save_tiny_llama(tmp_path / str(tied), tie_word_embeddings=tied)
        model = LlamaModel(open_checkpoint(tmp_path / str(tied)), dtype=torch.bfloat16, device=CPU)
        assert model.weights_bytes == 2 * reference.num_parameters()
