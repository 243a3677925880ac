"""What contradicts itself or is not known is refused, with both values or by name."""

from typing import Any

import pytest

from kvtide_sizing.errors import InvalidModel, UnsupportedModel
from kvtide_sizing.models import catalog
from kvtide_sizing.models.config_json import shape_of_config


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("smollm2-135m", {"num_key_value_heads": 4}, "9 query heads cannot be shared by 4 KV heads"),
        ("smollm2-135m", {"num_key_value_heads": 0}, "its num_key_value_heads is 0; it is 1 or more"),
        (
            "smollm2-135m",
            {"num_key_value_heads": [3] * 29},
            "num_key_value_heads has 29 layers, num_hidden_layers is 30",
        ),
        ("smollm2-135m", {"hidden_size": 577}, "hidden size 577 is not a multiple of its 9 query heads"),
        ("smollm2-135m", {"hidden_size": None}, "no number of hidden_size: None"),
        ("smollm2-135m", {"vocab_size": "49152"}, "no number of vocab_size: '49152'"),
        ("smollm2-135m", {"num_hidden_layers": True}, "no number of num_hidden_layers: True"),
        ("smollm2-135m", {"num_hidden_layers": 0}, "its num_hidden_layers is 0"),
        ("smollm2-135m", {"intermediate_size": -1}, "its intermediate_size is -1"),
        ("smollm2-135m", {"head_dim": 0}, "its head_dim is 0"),
        ("smollm2-135m", {"rope_scaling": "yarn"}, "no object of rope_scaling: 'yarn'"),
        ("smollm2-135m", {"quantization_config": "fp8"}, "no object of quantization_config: 'fp8'"),
        ("mistral-7b-v0.1", {"sliding_window": 0}, "its sliding_window is 0; it is 1 or more"),
        ("mistral-7b-v0.1", {"sliding_window": -1}, "its sliding_window is -1"),
        (
            "gemma-3-270m",
            {"layer_types": ["full_attention"] * 17},
            "layer_types has 17 layers, num_hidden_layers is 18",
        ),
        ("gemma-3-270m", {"layer_types": "full_attention"}, "no list of layer_types: 'full_attention'"),
        (
            "gemma-3-270m",
            {"layer_types": ["sliding_attention"] * 18, "sliding_window": None},
            "18 of its layer_types are sliding_attention, sliding_window is null",
        ),
        ("gemma-3-270m", {"sliding_window_pattern": 0}, "its sliding_window_pattern is 0"),
        ("gemma-3-4b", {"vision_config": None}, "has no vision_config"),
        ("gemma-3-4b", {"text_config": []}, r"no object of text_config: \[\]"),
        ("mixtral-8x7b", {"num_experts_per_tok": 9}, "each token goes to 9 experts .*, and there are 8"),
        ("qwen3-30b-a3b", {"num_experts_per_tok": 129}, "each token goes to 129 experts .*, and there are 128"),
        ("qwen2.5-7b", {"num_attention_heads": 27}, "not a multiple of its 27 query heads"),
        ("falcon-40b", {"num_kv_heads": 7}, "128 query heads cannot be shared by 7 KV heads"),
        ("gpt2", {"n_head": 7}, "hidden size 768 is not a multiple of its 7 query heads"),
        ("gpt2", {"n_embd": None}, "no number of n_embd: None"),
        ("deepseek-v3", {"kv_lora_rank": 0}, "its kv_lora_rank is 0"),
        ("deepseek-v3", {"num_experts_per_tok": 257}, "each token goes to 257 experts .*, and there are 256"),
    ],
)
def test_a_contradiction_is_refused_with_its_values(name: str, change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidModel, match=f"some.*{message}"):
        shape_of_config(catalog.config(name) | change, "some")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"architectures": ["OPTForCausalLM"]}, "is OPTForCausalLM, which is not known; known are LlamaForCausalLM"),
        ({"architectures": ["MistralModel"]}, "is MistralModel, which is not known"),
        ({"architectures": ["A", "B"]}, "is A, B, which is not known"),
        ({"model_type": "opt"}, "is of model_type opt, which is not known"),
        ({}, "is of model_type None"),
        ({"architectures": ["JambaForCausalLM"]}, "JambaForCausalLM, with state-space layers"),
        ({"architectures": ["MambaForCausalLM"], "state_size": 16}, "with state-space layers"),
        ({"architectures": ["FalconH1ForCausalLM"]}, "with state-space layers"),
        ({"architectures": ["OtherForCausalLM"], "mamba_d_state": 16}, r"state-space layers.*\(mamba_d_state 16\)"),
        ({"architectures": ["Qwen3NextForCausalLM"]}, "with linear attention"),
        ({"architectures": ["OtherForCausalLM"], "linear_num_value_heads": 32}, "with linear attention"),
        ({"architectures": ["Gemma3nForConditionalGeneration"]}, "layers that share another layer's keys and values"),
        (
            {"architectures": ["OtherForCausalLM"], "text_config": {"num_kv_shared_layers": 15}},
            r"share another layer's keys and values \(num_kv_shared_layers 15\)",
        ),
        ({"architectures": ["Llama4ForConditionalGeneration"]}, "with chunked attention"),
        ({"architectures": ["OtherForCausalLM"], "attention_chunk_size": 8192}, "with chunked attention"),
        ({"architectures": ["DeepseekV32ForCausalLM"]}, "with sparse attention"),
        ({"architectures": ["OtherForCausalLM"], "index_topk": 2048}, "with sparse attention"),
        ({"architectures": ["T5ForConditionalGeneration"]}, "with an encoder and cross attention"),
    ],
)
def test_unknown_attention_is_refused_by_name(config: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        shape_of_config(config, "some")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layer_types": ["chunked_attention"] * 18}, "has layers of chunked_attention, which is not known"),
        ({"layer_types": ["linear_attention"] + ["full_attention"] * 17}, "has layers of linear_attention"),
        ({"use_bidirectional_attention": True}, "has bidirectional attention"),
    ],
)
def test_unknown_layers_of_a_known_architecture_are_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        shape_of_config(catalog.config("gemma-3-270m") | change, "some")
