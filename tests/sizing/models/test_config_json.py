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
    ("change", "unserved"),
    [
        ({}, None),
        ({"rope_scaling": {"rope_type": "llama3"}}, None),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, None),
        ({"quantization_config": None}, None),
        ({"attention_bias": True}, "some has attention_bias True, which is not served; LlamaForCausalLM without it is"),
        ({"mlp_bias": True}, "some has mlp_bias True, which is not served; LlamaForCausalLM without it is"),
        (
            {"quantization_config": {"quant_method": "fp8"}},
            "some has quantization_config {'quant_method': 'fp8'}, which is not served; LlamaForCausalLM without it is",
        ),
        (
            {"num_key_value_heads": [3] * 29 + [1]},
            "some has layers of different num_key_value_heads, which is not served; equal layers are",
        ),
        ({"sliding_window": 7}, "some has sliding_window 7, which is not served; LlamaForCausalLM without it is"),
        ({"hidden_act": "gelu"}, "some has hidden_act gelu, which is not served; silu is"),
        ({"partial_rotary_factor": 0.5}, "some rotates a part of each head, which is not served; all of it is"),
        (
            {"rope_scaling": {"rope_type": "yarn"}},
            "some scales RoPE by yarn, which is not served; default, linear, llama3 are",
        ),
    ],
)
def test_a_llama_that_the_worker_does_not_run_is_planned_and_says_why(
    change: dict[str, Any], unserved: str | None
) -> None:
    assert shape_of_config(SMOLLM2 | change, "some").unserved == unserved


@pytest.mark.parametrize(
    ("change", "unserved"),
    [
        ({}, None),
        ({"hidden_activation": "gelu_pytorch_tanh"}, None),
        ({"rope_scaling": {"rope_type": "linear", "factor": 8.0}}, None),
        (
            {
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "factor": 8.0},
                    "sliding_attention": {"rope_type": "default"},
                }
            },
            None,
        ),
        ({"hidden_activation": "silu"}, "some has hidden_activation silu, which is not served; gelu_pytorch_tanh is"),
        (
            {"final_logit_softcapping": 30.0},
            "some has final_logit_softcapping 30.0, which is not served; Gemma3ForCausalLM without it is",
        ),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "llama3"}, "sliding_attention": {}}},
            "some scales RoPE by llama3, which is not served; default, linear are",
        ),
    ],
)
def test_a_gemma_that_the_worker_does_not_run_is_planned_and_says_why(
    change: dict[str, Any], unserved: str | None
) -> None:
    assert shape_of_config(catalog.config("gemma-3-270m") | change, "some").unserved == unserved


def test_a_window_that_says_nothing_is_no_window() -> None:
    config = catalog.config("mistral-7b") | {"max_position_embeddings": 512}
    assert {layer.window for layer in shape_of_config(config | {"sliding_window": 511}, "some").layers} == {511}
    assert {layer.window for layer in shape_of_config(config | {"sliding_window": 512}, "some").layers} == {None}


def test_layers_may_differ_in_their_heads() -> None:
    change = {"num_hidden_layers": 3, "num_key_value_heads": [9, 3, 1]}
    shape = shape_of_config(SMOLLM2 | change, "some")
    assert [layer.kv_heads for layer in shape.layers] == [9, 3, 1]
    keys_and_values = next(group for group in shape.weights if group.name == "key and value")
    assert keys_and_values.elements == 2 * (9 + 3 + 1) * 64 * 576


def test_an_architecture_may_be_named_by_its_type() -> None:
    named = {**SMOLLM2, "architectures": None}
    assert shape_of_config(named, "smollm2-135m") == catalog.builtin("smollm2-135m")


@pytest.mark.parametrize(
    ("quantization", "dtype"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "FP8"),
        ({"quant_method": "mxfp4"}, "MXFP4"),
        ({"quant_method": "awq", "bits": 4}, "INT4"),
        ({"quant_method": "gptq", "bits": 4}, "INT4"),
        ({"quant_method": "gptq", "bits": 8}, "INT8"),
    ],
)
def test_a_quantised_checkpoint_has_its_format(quantization: dict[str, Any], dtype: str) -> None:
    assert shape_of_config(SMOLLM2 | {"quantization_config": quantization}, "some").weights_dtype == dtype


@pytest.mark.parametrize(
    ("quantization", "message"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "by bitsandbytes, which is not known; fp8, mxfp4"),
        ({"quant_method": "gptq", "bits": 3}, "by gptq of 3 bits, which is not known; .*gptq of 4 or 8 bits are"),
        ({"bits": 4}, "by None of 4 bits"),
    ],
)
def test_another_quantisation_is_refused_by_name(quantization: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        shape_of_config(SMOLLM2 | {"quantization_config": quantization}, "some")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff\xfe"])
def test_what_is_not_a_json_object_is_refused_with_its_source(data: bytes) -> None:
    with pytest.raises(InvalidModel, match=r"some/config\.json"):
        json_object(data, "some/config.json")


def folder_of(path: Path, elements: int | None, dtype: Any = np.float16, **fields: Any) -> Path:
    (path / "config.json").write_text(json.dumps(TINY | fields))
    if elements is not None:
        save_file({"all": np.zeros(elements, dtype=dtype)}, path / "model.safetensors")
    return path


@pytest.mark.parametrize("elements", [TINY_PARAMETERS, TINY_PARAMETERS + 80])
def test_a_folders_weights_agree_with_its_configuration(tmp_path: Path, elements: int) -> None:
    shape = shape_of_folder(folder_of(tmp_path, elements), "tiny")
    assert (shape.parameters, shape.weights_dtype, shape.stored_bytes) == (TINY_PARAMETERS, "F16", 2 * elements)


def test_a_folder_without_weights_still_has_a_shape(tmp_path: Path) -> None:
    shape = shape_of_folder(folder_of(tmp_path, None), "tiny")
    assert (shape.weights_dtype, shape.stored_bytes) == (None, None)


def test_weights_that_the_configuration_needs_and_the_files_lack_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidModel, match=f"describes {TINY_PARAMETERS} parameters.*hold {TINY_PARAMETERS - 1}"):
        shape_of_folder(folder_of(tmp_path, TINY_PARAMETERS - 1), "tiny")


def test_packed_weights_are_compared_in_bytes(tmp_path: Path) -> None:
    """Eight elements of 4 bits in each int32, as GPTQ and AWQ pack them."""
    int4 = {"quantization_config": {"quant_method": "gptq", "bits": 4}}
    packed = -(-TINY_PARAMETERS // 8)
    shape = shape_of_folder(folder_of(tmp_path, packed, np.int32, **int4), "tiny")
    assert (shape.parameters, shape.weights_dtype, shape.stored_bytes) == (TINY_PARAMETERS, "INT4", 4 * packed)
    with pytest.raises(InvalidModel, match=rf"at least {TINY_PARAMETERS // 2} bytes.*hold {4 * (packed - 1)}"):
        shape_of_folder(folder_of(tmp_path, packed - 1, np.int32, **int4), "tiny")
