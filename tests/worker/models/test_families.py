"""Families that are built like Llama, against transformers: on small random models, in both file formats."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from kvtide_sizing.errors import UnsupportedModel
from kvtide_worker.models.checkpoint import open_checkpoint
from tests.worker.models.dense import load, read
from tests.worker.models.gguf_files import write_gated
from tests.worker.models.paged import paged_logits
from tests.worker.models.test_llama import LLAMA3_ROPE
from tests.worker.models.tiny import save_tiny

CHUNKS = [40, 1, 1, 57, 1]
FAMILIES = ["mistral", "qwen2", "qwen3", "phi3"]
COMMON: list[dict[str, Any]] = [
    {},
    {"tie_word_embeddings": True},
    {"num_key_value_heads": 4},
    {"num_key_value_heads": 1},
    {"rms_norm_eps": 0.1},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
]
# Heads of 16: eight frequencies. The divisors differ, so that it shows which set was taken.
LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 1000.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
    "long_factor": [1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 9.0],
}
OWN: list[tuple[str, dict[str, Any]]] = [
    ("mistral", {"head_dim": 32}),
    ("mistral", {"sliding_window": 24}),
    ("mistral", {"sliding_window": 1}),
    ("mistral", {"sliding_window": 99}),
    ("mistral", {"rope_parameters": LLAMA3_ROPE}),
    ("qwen2", {"use_sliding_window": False, "sliding_window": 24}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}),
    ("qwen3", {"head_dim": 16}),
    ("qwen3", {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}),
    ("phi3", {"sliding_window": 24}),
    ("phi3", {"sliding_window": 1024}),  # longer than the context, as in the files of 128k
    ("phi3", {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.75}}),
]


@torch.inference_mode()
def reference_logits(model: PreTrainedModel, tokens: torch.Tensor) -> torch.Tensor:
    return model(tokens[None]).logits[0].float()


def tokens_of(length: int) -> torch.Tensor:
    return torch.randint(0, 320, (length,), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize(
    ("family", "changes"), [*((family, changes) for family in FAMILIES for changes in COMMON), *OWN], ids=str
)
def test_logits_equal_transformers(tmp_path: Path, family: str, changes: dict[str, Any]) -> None:
    reference = save_tiny(tmp_path, family, **changes)
    tokens = tokens_of(100)
    logits = paged_logits(open_checkpoint(tmp_path), tokens, CHUNKS)
    # float32 sums in another order: logits are up to ~60 here.
    torch.testing.assert_close(logits, reference_logits(reference, tokens), atol=3e-4, rtol=1e-5)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        *((family, {}) for family in ("llama", *FAMILIES)),
        ("llama", {"rope_parameters": LLAMA3_ROPE}),
        ("mistral", {"sliding_window": 24}),
        ("qwen2", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
        ("qwen3", {"num_key_value_heads": 4}),
        ("phi3", {"rope_parameters": LONG_ROPE, "original_max_position_embeddings": 64}),
    ],
    ids=str,
)
def test_bfloat16_is_no_further_from_transformers_than_it_is_from_float32(
    tmp_path: Path, family: str, changes: dict[str, Any]
) -> None:
    save_tiny(tmp_path, family, **changes)
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16).eval()
    tokens = tokens_of(100)
    rounded = reference_logits(reference, tokens)
    exact = reference_logits(reference.float(), tokens)
    logits = paged_logits(open_checkpoint(tmp_path), tokens, [100], dtype=torch.bfloat16).float()
    assert (logits - rounded).abs().max() <= (exact - rounded).abs().max()
    assert (logits - rounded).square().mean() <= (exact - rounded).square().mean()


@pytest.mark.parametrize(
    ("length", "context_tokens"),
    [
        (64, 64),  # short factors: no sequence grows longer than the trained context
        (65, None),  # long ones: transformers takes them from the first token on that is beyond it
        (100, 100),
    ],
)
@pytest.mark.parametrize("part", [1.0, 0.75])
def test_longrope_is_chosen_by_the_context_that_is_served(
    tmp_path: Path, length: int, context_tokens: int | None, part: float
) -> None:
    size = int(8 * part)
    rope = {name: value[:size] if isinstance(value, list) else value for name, value in LONG_ROPE.items()}
    reference = save_tiny(
        tmp_path,
        "phi3",
        rope_parameters={**rope, "partial_rotary_factor": part},
        original_max_position_embeddings=64,
    )
    tokens = tokens_of(length)
    logits = paged_logits(open_checkpoint(tmp_path), tokens, [length - 1, 1], context_tokens=context_tokens)
    torch.testing.assert_close(logits, reference_logits(reference, tokens), atol=3e-4, rtol=1e-5)


def test_older_folders_of_phi3_name_longrope_otherwise(tmp_path: Path) -> None:
    """config.json as microsoft/Phi-3-mini-128k-instruct has it: `su`, and the trained context beside."""
    save_tiny(tmp_path, "phi3", rope_parameters=LONG_ROPE, original_max_position_embeddings=64)
    new = open_checkpoint(tmp_path).config
    config = json.loads((tmp_path / "config.json").read_text())
    del config["rope_parameters"]
    config |= {
        "rope_theta": LONG_ROPE["rope_theta"],
        "rope_scaling": {"type": "su", **{name: LONG_ROPE[name] for name in ("long_factor", "short_factor")}},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert open_checkpoint(tmp_path).config == new


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("qwen2", {}),
        ("qwen2", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
        ("qwen3", {}),
        ("qwen3", {"num_key_value_heads": 4, "tie_word_embeddings": True}),
        ("phi3", {}),
        ("phi3", {"num_key_value_heads": 1, "sliding_window": 24}),
        ("phi3", {"rope_parameters": {**LONG_ROPE}, "original_max_position_embeddings": 64}),
        ("phi3", {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.75}}),
    ],
    ids=str,
)
def test_gguf_and_folder_are_the_same_model(tmp_path: Path, family: str, changes: dict[str, Any]) -> None:
    reference = save_tiny(tmp_path / "folder", family, **changes)
    # LongRoPE's factor for a context of 512 from 64: sqrt(1 + ln 8 / ln 64) = sqrt(1.5)
    write_gated(tmp_path / "model.gguf", reference, attention_factor=math.sqrt(1.5))
    folder, file = open_checkpoint(tmp_path / "folder"), open_checkpoint(tmp_path / "model.gguf")
    for name, parameter in reference.named_parameters():
        assert torch.equal(read(folder, name), parameter)
        assert torch.equal(read(file, name), parameter)
    tokens = tokens_of(100)
    logits = paged_logits(file, tokens, CHUNKS)
    torch.testing.assert_close(logits, reference_logits(reference, tokens), atol=3e-4, rtol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [False, True])
def test_weights_bytes(tmp_path: Path, family: str, tied: bool) -> None:
    """2 bytes a parameter, by transformers' count; Qwen 3's norms of heads count for each head, not once."""
    reference = save_tiny(tmp_path, family, tie_word_embeddings=tied)
    repeated = 2 * 2 * (4 + 2 - 2) * 32 if family == "qwen3" else 0
    model = load(open_checkpoint(tmp_path), torch.bfloat16)
    assert model.weights_bytes == 2 * reference.num_parameters() + repeated


@pytest.mark.parametrize(
    ("family", "change", "message"),
    [
        ("mistral", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1.0}}, "scales RoPE by 'yarn'; this"),
        ("mistral", {"partial_rotary_factor": 0.5}, "rotates a part of each head"),
        ("qwen2", {"quantization_config": {"bits": 4}}, "sets quantization_config="),
        ("qwen2", {"rope_scaling": {"type": "yarn", "factor": 4.0}, "rope_parameters": None}, "RoPE by 'yarn'"),
        ("qwen3", {"attention_bias": True}, "sets attention_bias=True"),
        ("phi3", {"hidden_act": "gelu"}, "sets hidden_act=gelu; this worker runs 'silu'"),
        (
            "phi3",
            {"rope_parameters": {"rope_type": "linear", "rope_theta": 1.0}},
            "this worker knows default, longrope",
        ),
        ("phi3", {"rope_parameters": {"rope_type": "su", "rope_theta": 1.0}}, "but does not say its 'short_factor'"),
        ("phi3", {"layer_types": ["sliding_attention"] * 2}, "but no sliding_window"),
    ],
)
def test_refuses_what_the_family_could_have_been(
    tmp_path: Path, family: str, change: dict[str, Any], message: str
) -> None:
    save_tiny(tmp_path, family)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(UnsupportedModel, match=message):
        open_checkpoint(tmp_path)


def test_a_gguf_with_biases_that_are_not_added_is_refused(tmp_path: Path) -> None:
    """As the converter writes a Llama with attention_bias: by its names a qwen2 file, but for the architecture."""
    reference = save_tiny(tmp_path / "folder", "qwen2")
    reference.config.model_type = "llama"
    write_gated(tmp_path / "model.gguf", reference)
    with pytest.raises(UnsupportedModel, match=r"has a bias blk\.0\.attn_q\.bias, which this worker does not add"):
        open_checkpoint(tmp_path / "model.gguf")
