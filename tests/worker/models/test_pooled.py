"""Pooled KV heads, against transformers' own model of as many heads with the pooled weights put in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from kvtide_sizing.errors import InvalidPlan
from kvtide_worker.models.checkpoint import open_checkpoint
from kvtide_worker.models.model import load_model
from kvtide_worker.models.pooled import PooledCheckpoint
from tests.worker.models.dense import CPU, dense_logits, load
from tests.worker.models.tiny import save_tiny

HEADS = {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16}


def mean_of_groups(rows: torch.Tensor, groups: int) -> torch.Tensor:
    """[heads · 16, ...] to [groups · 16, ...]."""
    heads = rows.reshape(groups, -1, 16, *rows.shape[1:])
    return heads.mean(dim=1).reshape(groups * 16, *rows.shape[1:])


def pooled_twin(folder: Path, family: str, groups: int, native: Any) -> Any:
    """transformers' model with fewer KV heads, each the mean of its group in native."""
    twin = save_tiny(folder, family, **{**HEADS, "num_key_value_heads": groups})
    state = native.state_dict()
    for name, rows in state.items():
        if ".k_proj." in name or ".v_proj." in name:
            state[name] = mean_of_groups(rows, groups)
        if ".qkv_proj." in name:
            query, key, value = rows.split(64)
            state[name] = torch.cat([query, mean_of_groups(key, groups), mean_of_groups(value, groups)])
    twin.load_state_dict(state)
    return twin


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma3", "phi3"])
def test_a_pooled_model_is_transformers_of_the_mean_heads(tmp_path: Path, family: str, groups: int) -> None:
    for name in ("native", "twin"):
        (tmp_path / name).mkdir()
    twin = pooled_twin(tmp_path / "twin", family, groups, save_tiny(tmp_path / "native", family, **HEADS))
    checkpoint = PooledCheckpoint(open_checkpoint(tmp_path / "native"), groups)
    model = load_model(checkpoint, dtype=torch.float32, device=CPU)
    assert model.config.kv_heads == groups
    tokens = torch.randint(0, 320, (50,))
    with torch.inference_mode():
        expected = twin(tokens[None]).logits[0]
    torch.testing.assert_close(dense_logits(model, tokens, [30, 1, 19]), expected, rtol=1e-4, atol=1e-3)


def test_heads_that_are_alike_lose_nothing(tmp_path: Path) -> None:
    native = save_tiny(tmp_path, "llama", **HEADS)
    with torch.no_grad():
        for layer in native.model.layers:
            for projection in (layer.self_attn.k_proj, layer.self_attn.v_proj):
                heads = projection.weight.view(2, 2, 16, 64)
                heads[:, 1] = heads[:, 0]
    native.save_pretrained(tmp_path)
    checkpoint, tokens = open_checkpoint(tmp_path), torch.randint(0, 320, (50,))
    pooled = load_model(PooledCheckpoint(checkpoint, 2), dtype=torch.float32, device=CPU)
    expected = dense_logits(load(checkpoint), tokens, [50])
    torch.testing.assert_close(dense_logits(pooled, tokens, [50]), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kv_heads", [3, 8, 0])
def test_groups_of_different_sizes_are_refused(tmp_path: Path, kv_heads: int) -> None:
    save_tiny(tmp_path, "llama", **HEADS)
    with pytest.raises(InvalidPlan, match=f"4 KV heads make no {kv_heads} groups .* one of 1, 2, 4"):
        PooledCheckpoint(open_checkpoint(tmp_path), kv_heads)
