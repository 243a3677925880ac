"""The forward pass against transformers, for every variant of the family that the configuration can say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from kvtide_kernels.attention import SequenceSpan
from kvtide_kernels.torch_attention import TorchAttention
from kvtide_worker.models.checkpoint import open_checkpoint
from tests.kernels.paged import Held
from tests.worker.models.dense import load
from tests.worker.models.paged import paged_logits, paged_pool
from tests.worker.models.tiny import save_tiny_llama

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 1000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


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
    model = load(open_checkpoint(tmp_path), torch.bfloat16)
    attention = TorchAttention(paged_pool(model.config, num_blocks=4, dtype=torch.bfloat16), scale=0.25)
    step = attention.plan([SequenceSpan([Held([1, 0]), Held([2, 3])], 0, 20)])
    for wanted in ([], [19], [3, 19]):
        logits = model.forward(torch.arange(20), torch.arange(20), step, torch.tensor(wanted, dtype=torch.int64))
        assert (logits.shape, logits.dtype) == ((len(wanted), 320), torch.bfloat16)


def test_weights_bytes(tmp_path: Path) -> None:
    """2 bytes a parameter, by transformers' count; tied embeddings count once."""
    for tied in (False, True):
        reference = save_tiny_llama(tmp_path / str(tied), tie_word_embeddings=tied)
        model = load(open_checkpoint(tmp_path / str(tied)), torch.bfloat16)
        assert model.weights_bytes == 2 * reference.num_parameters()
