import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from kvtide_sizing.errors import InvalidModel, UnsupportedModel
from kvtide_sizing.models import catalog
from kvtide_sizing.models.config_json import json_object, shape_of_config, shape_of_folder

# The hub's config.json of HuggingFaceTB/SmolLM2-135M-Instruct, without what says nothing about sizes.
SMOLLM2: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "rope_scaling": None,
    "tie_word_embeddings": True,
    "vocab_size": 49152,
}
TINY = SMOLLM2 | {
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "num_key_value_heads": 1,
    "vocab_size": 10,
}
# q 8·8, k 4·8, v 4·8, o 8·8; gate, up, down 8·16; three norms of 8; the embedding 10·8
TINY_PARAMETERS = 64 + 32 + 32 + 64 + 3 * 128 + 3 * 8 + 80


def test_a_configuration_gives_the_built_in_shape() -> None:
    assert shape_of_config(SMOLLM2, "smollm2-135m") == catalog.builtin("smollm2-135m")


@pytest.mark.parametrize(
    ("change", "kv_heads", "head_dim"),
    [
        ({}, 3, 64),
        ({"num_key_value_heads": None}, 9, 64),  # as in files from before grouped-query attention
        ({"head_dim": 128}, 3, 128),  # given: never hidden / heads
        ({"head_dim": 48, "hidden_size": 577}, 3, 48),
        ({"num_key_value_heads": 9}, 9, 64),
    ],
)
def test_heads_come_from_the_configuration(change: dict[str, Any], kv_heads: int, head_dim: int) -> None:
    shape = shape_of_config(SMOLLM2 | change, "some")
    assert {(layer.kv_heads, layer.head_dim) for layer in shape.layers} == {(kv_heads, head_dim)}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"architectures": ["MistralForCausalLM"]}, UnsupportedModel, "is MistralForCausalLM.*; LlamaForCausalLM is"),
        ({"architectures": None, "model_type": "gpt2"}, UnsupportedModel, "model_type gpt2.*; LlamaForCausalLM is"),
        ({"attention_bias": True}, UnsupportedModel, "attention_bias True"),
        ({"quantization_config": {"bits": 4}}, UnsupportedModel, "quantization_config"),
        ({"hidden_act": "gelu"}, UnsupportedModel, "hidden_act gelu.*; silu is"),
        ({"partial_rotary_factor": 0.5}, UnsupportedModel, "part of each head"),
        ({"rope_scaling": {"rope_type": "yarn"}}, UnsupportedModel, "RoPE by yarn.*; default, linear, llama3 are"),
        ({"num_key_value_heads": 4}, InvalidModel, "9 query heads cannot be shared by 4 KV heads"),
        ({"hidden_size": 577}, InvalidModel, "hidden size 577 is not a multiple of its 9 query heads"),
        ({"hidden_size": None}, InvalidModel, "no number of hidden_size: None"),
        ({"vocab_size": "49152"}, InvalidModel, "no number of vocab_size: '49152'"),
        ({"num_hidden_layers": True}, InvalidModel, "no number of num_hidden_layers: True"),
        ({"num_hidden_layers": 0}, InvalidModel, "its layers is 0"),
        ({"num_key_value_heads": 0}, InvalidModel, "its KV heads is 0"),
    ],
)
def test_what_is_not_served_or_contradicts_itself_is_refused(
    change: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        shape_of_config(SMOLLM2 | change, "some")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff\xfe"])
def test_what_is_not_a_json_object_is_refused_with_its_source(data: bytes) -> None:
    with pytest.raises(InvalidModel, match=r"some/config\.json"):
        json_object(data, "some/config.json")


def folder_of(path: Path, elements: int | None) -> Path:
    (path / "config.json").write_text(json.dumps(TINY))
    if elements is not None:
        save_file({"all": np.zeros(elements, dtype=np.float16)}, path / "model.safetensors")
    return path


@pytest.mark.parametrize("elements", [TINY_PARAMETERS, TINY_PARAMETERS + 80])
def test_a_folders_weights_agree_with_its_configuration(tmp_path: Path, elements: int) -> None:
    shape = shape_of_folder(folder_of(tmp_path, elements), "tiny")
    assert (shape.parameters, shape.weights_dtype) == (TINY_PARAMETERS, "F16")


def test_a_folder_without_weights_still_has_a_shape(tmp_path: Path) -> None:
    assert shape_of_folder(folder_of(tmp_path, None), "tiny").weights_dtype is None


def test_weights_that_the_configuration_needs_and_the_files_lack_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidModel, match=f"describes {TINY_PARAMETERS} parameters.*hold {TINY_PARAMETERS - 1}"):
        shape_of_folder(folder_of(tmp_path, TINY_PARAMETERS - 1), "tiny")
