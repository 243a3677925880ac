"""Gemma 3's forward pass against transformers, and its two file formats, on small random models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Gemma3ForCausalLM

from kvtide_sizing.errors import UnsupportedModel
from kvtide_worker.models.checkpoint import open_checkpoint
from tests.worker.models.dense import dense_logits, load, read
from tests.worker.models.gguf_files import write_gemma3
from tests.worker.models.tiny import save_tiny_gemma3

CHUNKS = [40, 1, 1, 57, 1]
LINEAR_ROPE = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1_000_000.0, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
}


@torch.inference_mode()
def reference_logits(model: Gemma3ForCausalLM, tokens: torch.Tensor) -> torch.Tensor:
    return model(tokens[None]).logits[0].float()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"sliding_window": 1},  # a token sees itself
        {"sliding_window": 99},  # the last of 100 tokens no longer sees the first
        {"sliding_window": 512},  # longer than the sequence
        {"num_key_value_heads": 2},
        {"num_key_value_heads": 4, "head_dim": 16},
        {"query_pre_attn_scalar": 100},
        {"tie_word_embeddings": False},
        {"rms_norm_eps": 0.1},
        {"layer_types": ["full_attention"] * 7},
        {"layer_types": [*["full_attention", "sliding_attention"] * 3, "full_attention"]},
        {"rope_parameters": LINEAR_ROPE},
        {"rope_parameters": {kind: {"rope_type": "default", "rope_theta": 70.0} for kind in LINEAR_ROPE}},
    ],
    ids=lambda changes: "-".join(map(str, changes)) or "plain",
)
def test_logits_equal_transformers(tmp_path: Path, changes: dict[str, Any]) -> None:
    reference = save_tiny_gemma3(tmp_path, **changes)
    tokens = torch.randint(0, 320, (100,))
    logits = dense_logits(load(open_checkpoint(tmp_path)), tokens, CHUNKS)
    torch.testing.assert_close(logits, reference_logits(reference, tokens), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("changes", [{}, {"num_key_value_heads": 2}, {"sliding_window": 512}])
def test_bfloat16_is_no_further_from_transformers_than_it_is_from_float32(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    save_tiny_gemma3(tmp_path, **changes)
    reference = Gemma3ForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16).eval()
    tokens = torch.randint(0, 320, (100,))
    rounded = reference_logits(reference, tokens)
    exact = reference_logits(reference.float(), tokens)
    logits = dense_logits(load(open_checkpoint(tmp_path), torch.bfloat16), tokens, [100])
    assert (logits - rounded).abs().max() <= (exact - rounded).abs().max()
    assert (logits - rounded).square().mean() <= (exact - rounded).square().mean()


def test_weights_bytes(tmp_path: Path) -> None:
    """2 bytes a parameter, by transformers' count, and 4 for norms: 2 more for each of them.

    Of a layer four norms of hidden_size, one of head_dim for each of 4 query heads and 1 KV head; one at the end.
    transformers counts one of head_dim for all query heads and one for all KV heads.
    """
    reference = save_tiny_gemma3(tmp_path)
    norms, repeated = 7 * (4 * 64 + 2 * 32) + 64, 7 * (5 - 2) * 32
    model = load(open_checkpoint(tmp_path), torch.bfloat16)
    assert model.weights_bytes == 2 * reference.num_parameters() + 2 * norms + 4 * repeated


@pytest.mark.parametrize("linear", [None, 8.0])
def test_gguf_and_folder_are_the_same_model(tmp_path: Path, linear: float | None) -> None:
    ropes = {"rope_parameters": LINEAR_ROPE} if linear else {}
    reference = save_tiny_gemma3(tmp_path / "folder", **ropes)
    write_gemma3(tmp_path / "model.gguf", reference, linear=linear)
    folder, file = open_checkpoint(tmp_path / "folder"), open_checkpoint(tmp_path / "model.gguf")
    assert folder.config == file.config
    for name, parameter in reference.named_parameters():
        assert torch.equal(read(folder, name), parameter)
        # A norm of float32 loses a bit where the file adds 1 to it.
        torch.testing.assert_close(read(file, name), parameter.detach(), atol=2**-24, rtol=0)


def test_the_27b_file_does_not_say_how_its_scores_are_scaled(tmp_path: Path) -> None:
    """62 layers, heads of 128, hidden size 5376 over 32 heads: query_pre_attn_scalar 168 in its config.json."""
    reference = save_tiny_gemma3(tmp_path / "folder", num_hidden_layers=62, hidden_size=168, num_attention_heads=1)
    write_gemma3(tmp_path / "model.gguf", reference)
    config = open_checkpoint(tmp_path / "model.gguf").config
    assert (config.attention_scale, config.head_dim) == (168**-0.5, 32)


def test_older_folders_say_windows_and_rope_otherwise(tmp_path: Path) -> None:
    """config.json as google/gemma-3-1b-it has it, with the scaling of the larger ones."""
    save_tiny_gemma3(tmp_path, rope_parameters=LINEAR_ROPE)
    new = open_checkpoint(tmp_path).config
    assert new.windows == (24, 24, 24, 24, 24, None, 24)
    config = json.loads((tmp_path / "config.json").read_text())
    for key in ("rope_parameters", "layer_types", "_sliding_window_pattern", "tie_word_embeddings"):
        del config[key]
    config |= {
        "rope_theta": 1_000_000,
        "rope_local_base_freq": 10_000,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window_pattern": 6,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert open_checkpoint(tmp_path).config == new


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"final_logit_softcapping": 30.0}, r"sets final_logit_softcapping=30\.0"),
        ({"attn_logit_softcapping": 50.0}, r"sets attn_logit_softcapping=50\.0"),
        ({"attention_bias": True}, "sets attention_bias=True"),
        ({"use_bidirectional_attention": True}, "sets use_bidirectional_attention=True"),
        ({"hidden_activation": "silu"}, "sets hidden_activation=silu; this worker runs 'gelu_pytorch_tanh'"),
        ({"model_type": "gemma3"}, "of type 'gemma3'; this worker runs 'llama', .* 'gemma3_text', "),
        ({"layer_types": ["chunked_attention"] * 7}, "has layers of type 'chunked_attention'; this worker runs"),
        ({"layer_types": ["full_attention"]}, "has 7 layers but 1 layer_types"),
        ({"sliding_window": None}, "but no sliding_window"),
    ],
)
def test_refuses_what_the_family_could_have_been(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    save_tiny_gemma3(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(UnsupportedModel, match=message):
        open_checkpoint(tmp_path)


def test_refuses_a_gguf_with_capped_logits(tmp_path: Path) -> None:
    write_gemma3(tmp_path / "model.gguf", save_tiny_gemma3(tmp_path / "folder"), softcap=30.0)
    with pytest.raises(UnsupportedModel, match=r"sets final_logit_softcapping=30\.0"):
        open_checkpoint(tmp_path / "model.gguf")
