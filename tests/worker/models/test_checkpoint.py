"""Both file formats: what is read, and what is refused by name before any weight is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from transformers import LlamaForCausalLM

from kvtide_sizing.errors import ModelNotFound, UnsupportedModel
from kvtide_worker.models.checkpoint import open_checkpoint
from kvtide_worker.models.gguf import GgufCheckpoint
from tests.worker.models.dense import read
from tests.worker.models.gguf_files import write_llama
from tests.worker.models.paged import paged_logits
from tests.worker.models.test_llama import LLAMA3_ROPE
from tests.worker.models.tiny import save_tiny_llama


def test_gguf_and_folder_are_the_same_model(tmp_path: Path) -> None:
    reference = save_tiny_llama(tmp_path / "folder")
    write_llama(tmp_path / "model.gguf", reference)
    folder, file = open_checkpoint(tmp_path / "folder"), open_checkpoint(tmp_path / "model.gguf")
    assert folder.config == file.config
    for name, parameter in reference.named_parameters():
        assert torch.equal(read(folder, name), parameter)
        assert torch.equal(read(file, name), parameter)


def test_gguf_carries_llama3_rope_as_factors(tmp_path: Path) -> None:
    reference = save_tiny_llama(tmp_path / "folder", rope_parameters=LLAMA3_ROPE)
    plain = 1.0 / 1000.0 ** (torch.arange(0, 16, 2) / 16)
    write_llama(tmp_path / "model.gguf", reference, rope_freqs=(plain / reference.model.rotary_emb.inv_freq).numpy())
    tokens = torch.randint(0, 320, (100,))
    with torch.inference_mode():
        expected = reference(tokens[None]).logits[0]
    logits = paged_logits(open_checkpoint(tmp_path / "model.gguf"), tokens, chunks=[100])
    torch.testing.assert_close(logits, expected, atol=2e-4, rtol=1e-5)


@pytest.mark.slow
def test_real_gguf_is_what_transformers_reads(smollm2: Path, smollm2_float32: LlamaForCausalLM) -> None:
    """SmolLM2's quantised file: every tensor, dequantised, against transformers' own reader."""
    checkpoint = GgufCheckpoint(smollm2)
    parameters = dict(smollm2_float32.named_parameters())
    assert len(parameters) == 272  # as the file's header says
    for name, parameter in parameters.items():
        assert torch.equal(read(checkpoint, name), parameter), name
    assert checkpoint.config.eos_token_ids == (2,)
    assert checkpoint.config.tied_embeddings


def test_eos_of_a_chat_model_comes_from_its_generation_config(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    assert open_checkpoint(tmp_path).config.eos_token_ids == (7, 9)


def test_older_folders_name_rope_otherwise(tmp_path: Path) -> None:
    """config.json before transformers 5: rope_theta beside rope_scaling, whose kind was `type` at first."""
    save_tiny_llama(tmp_path, rope_parameters=LLAMA3_ROPE)
    new = open_checkpoint(tmp_path).config
    config = json.loads((tmp_path / "config.json").read_text())
    del config["rope_parameters"]
    scaling = {("type" if key == "rope_type" else key): value for key, value in LLAMA3_ROPE.items()}
    config |= {"rope_theta": scaling.pop("rope_theta"), "rope_scaling": scaling}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert open_checkpoint(tmp_path).config == new


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mixtral"}, "of type 'mixtral'; this worker runs 'llama', 'mistral', "),
        ({"attention_bias": True}, "sets attention_bias=True"),
        ({"quantization_config": {"bits": 4}}, "sets quantization_config="),
        ({"partial_rotary_factor": 0.5}, "rotates a part of each head"),
        ({"hidden_act": "gelu"}, "sets hidden_act=gelu; this worker runs 'silu'"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "scales RoPE by 'yarn'"),
    ],
)
def test_refuses_other_models_in_a_folder(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    save_tiny_llama(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(UnsupportedModel, match=message):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"architecture": "qwen2moe"}, "of architecture 'qwen2moe'; this worker runs 'llama', 'qwen2', "),
        ({"experts": 8}, "is a mixture of experts"),
        ({"rope_dimensions": 8}, "rotates a part of each head"),
        ({"head_count_kv": [2, 1]}, "has one llama.attention.head_count_kv per layer"),
        ({"rope_scaling": gguf.RopeScalingType.YARN}, "scales RoPE by 'yarn'"),
    ],
)
def test_refuses_other_models_in_a_gguf(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    write_llama(tmp_path / "model.gguf", save_tiny_llama(tmp_path / "folder"), **fields)
    with pytest.raises(UnsupportedModel, match=message):
        open_checkpoint(tmp_path / "model.gguf")


def test_refuses_what_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="there is no model at"):
        open_checkpoint(tmp_path / "nothing")
    with pytest.raises(UnsupportedModel, match=r"neither a \.gguf file nor a folder with config\.json"):
        open_checkpoint(tmp_path)
    save_tiny_llama(tmp_path)
    for file in tmp_path.glob("*.safetensors"):
        file.unlink()
    with pytest.raises(UnsupportedModel, match=r"has no \*\.safetensors"):
        open_checkpoint(tmp_path)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path, tie_word_embeddings=True)
    with pytest.raises(KeyError, match=r"has no tensor lm_head\.weight"):
        open_checkpoint(tmp_path).shape("lm_head.weight")
