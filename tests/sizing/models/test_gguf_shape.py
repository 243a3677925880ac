"""Shapes from GGUF headers: of real files, of written ones, and of every family's by what the converter writes."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import pytest

from devcluster.model import gemma3_270m_gguf, smollm2_gguf
from kvtide_sizing.errors import InvalidModel, UnsupportedModel
from kvtide_sizing.models import catalog
from kvtide_sizing.models.config_json import shape_of_config
from kvtide_sizing.models.gguf_header import read_header
from kvtide_sizing.models.gguf_shape import shape_of_gguf
from tests.sizing.models.gguf_files import HIDDEN, INTERMEDIATE, VOCABULARY, write_converted, write_model
from tests.sizing.models.tiny import tiny


@pytest.mark.parametrize(
    ("file", "name", "commonest"),
    [(smollm2_gguf, "smollm2-135m", "Q4_1"), (gemma3_270m_gguf, "gemma-3-270m", "Q8_0")],
)
def test_a_real_file_gives_the_built_in_shape(file: Callable[[], Path], name: str, commonest: str) -> None:
    shape = shape_of_gguf(file(), name)
    assert shape.weights_dtype == commonest
    assert shape.stored_bytes == sum(tensor.stored_bytes for tensor in read_header(file()).tensors.values())
    assert replace(shape, weights_dtype=None, stored_bytes=None) == catalog.builtin(name)


@pytest.mark.parametrize(("untied", "embeddings"), [(False, VOCABULARY * HIDDEN), (True, 2 * VOCABULARY * HIDDEN)])
def test_a_written_model_is_counted(tmp_path: Path, untied: bool, embeddings: int) -> None:
    shape = shape_of_gguf(write_model(tmp_path / "m.gguf", untied=untied), "m")
    layer = 2 * HIDDEN * HIDDEN + 2 * HIDDEN * HIDDEN // 2 + 3 * HIDDEN * INTERMEDIATE + 2 * HIDDEN
    assert shape.parameters == embeddings + layer + HIDDEN
    assert shape.tied_embeddings is not untied
    assert (shape.query_heads, shape.kv_heads, shape.head_dim, shape.vocab_size) == (2, 1, HIDDEN // 2, VOCABULARY)
    assert (shape.max_context_tokens, shape.weights_dtype) == (512, "F16")
    # matrices and embeddings of two bytes, three norms and the unused factors of rotation of four
    assert shape.stored_bytes == 2 * (shape.parameters - 3 * HIDDEN) + 4 * (3 * HIDDEN + 8)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"architecture": "rwkv7"}, UnsupportedModel, "architecture rwkv7, which is not known; known are llama, qwen2"),
        (
            {"attention.value_length": 8, "attention.key_length": 16},
            UnsupportedModel,
            "keys? .*16 and value heads of 8",
        ),
        ({"feed_forward_length": [64, 32]}, UnsupportedModel, "layers with intermediate_size of 32, 64"),
        ({"attention.head_count_kv": 3}, InvalidModel, "2 query heads cannot be shared by 3 KV heads"),
        ({"attention.head_count_kv": [1, 2]}, InvalidModel, "num_key_value_heads has 2 layers, num_hidden_layers is 1"),
        # 40·32 + 2·32·32 + 2·16·32 + 3·32·64 + 3·32 = 10592, and 3·32 more for one more row of each MLP matrix
        ({"feed_forward_length": 65}, InvalidModel, "metadata describes 10688 parameters, its tensors hold 10592"),
        ({"block_count": 2}, InvalidModel, "contradicts itself"),
        ({"attention.head_count": 0}, InvalidModel, "its num_attention_heads is 0"),
        ({"attention.head_count": "two"}, InvalidModel, "no number of num_attention_heads: 'two'"),
        ({"expert_count": 8}, InvalidModel, "no number of num_experts_per_tok: None"),
        ({"expert_count": 8, "expert_used_count": 2}, InvalidModel, "metadata describes .* its tensors hold 10592"),
    ],
)
def test_what_is_not_known_or_contradicts_itself_is_refused(
    tmp_path: Path, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        shape_of_gguf(write_model(tmp_path / "m.gguf", **changes), "m")


@pytest.mark.parametrize(
    ("changes", "unserved"),
    [
        ({}, None),
        ({"rope.scaling.type": "none"}, None),
        ({"rope.scaling.type": "linear"}, None),
        ({"rope.dimension_count": 16}, None),
        ({"tokenizer": ("gpt2", "smollm")}, None),
        (
            {"attention.head_count_kv": [1]},
            "m has one llama.attention.head_count_kv per layer, which is not served; a file with one for all layers is",
        ),
        ({"rope.scaling.type": "yarn"}, "m scales RoPE by yarn, which is not served; default, linear, llama3 are"),
        ({"rope.dimension_count": 8}, "m rotates a part of each head, which is not served; all of it is"),
        ({"tokenizer": ("gpt2", "qwen2")}, None),
        ({"tokenizer": ("llama", "default")}, None),
        (
            {"tokenizer": ("gpt2", "kimi-k2")},
            "m has the tokenizer gpt2/kimi-k2, which is not served from a GGUF file; gpt2/gpt-2, gpt2/smollm, "
            "gpt2/llama-bpe, gpt2/dbrx, gpt2/gpt-4o, gpt2/tekken, gpt2/qwen2, llama/default are, and any from a folder "
            "with tokenizer.json",
        ),
    ],
)
def test_what_the_worker_does_not_run_is_planned_and_says_why(
    tmp_path: Path, changes: dict[str, Any], unserved: str | None
) -> None:
    assert shape_of_gguf(write_model(tmp_path / "m.gguf", **changes), "m").unserved == unserved


def keys(**more: Any) -> dict[str, Any]:
    """What the converter writes for every tiny model of 4 layers."""
    common = {"block_count": 4, "context_length": 64, "embedding_length": 128, "feed_forward_length": 80}
    return {**common, "head_count": 32, "head_count_kv": 2, **more}


HEADS = {"key_length": 16, "value_length": 16}
EXPERTS = {"expert_count": 5, "expert_used_count": 2}
LATENT = {
    **EXPERTS,
    "expert_shared_count": 1,
    "expert_feed_forward_length": 24,
    "leading_dense_block_count": 1,
    "kv_lora_rank": 32,
    "rope_dimension_count": 8,
}
ARCH = gguf.MODEL_ARCH
# What GGUF has no words for: no model has it that was converted.
NOT_IN_GGUF = {"decoder_sparse_step": 1, "mlp_only_layers": [], "use_sliding_window": False}

# What llama.cpp's converter writes for each of them (convert_hf_to_gguf.py, set_gguf_parameters).
CONVERTED = [
    ("llama", ARCH.LLAMA, keys()),
    ("llama with biases", ARCH.LLAMA, keys(**HEADS)),
    ("mixtral", ARCH.LLAMA, keys(**EXPERTS)),
    ("qwen2 without windows", ARCH.QWEN2, keys()),
    ("qwen3", ARCH.QWEN3, keys(**HEADS)),
    (
        "qwen2 with experts",
        ARCH.QWEN2MOE,
        keys(**EXPERTS, expert_feed_forward_length=24, expert_shared_feed_forward_length=40),
    ),
    ("qwen3 with experts", ARCH.QWEN3MOE, keys(**HEADS, **EXPERTS, expert_feed_forward_length=24)),
    ("gemma2", ARCH.GEMMA2, keys(**HEADS, sliding_window=16)),
    ("gemma3", ARCH.GEMMA3, keys(**HEADS, sliding_window=16, sliding_window_pattern=3)),
    (
        "gemma3 by layer",
        ARCH.GEMMA3,
        keys(**HEADS, sliding_window=16, sliding_window_pattern=[False, True, True, False]),
    ),
    ("phi", ARCH.PHI2, keys()),
    ("phi3", ARCH.PHI3, keys(sliding_window=16)),
    ("falcon of one KV head", ARCH.FALCON, keys(feed_forward_length=512, head_count_kv=1, context_length=64)),
    ("falcon of groups", ARCH.FALCON, keys(feed_forward_length=512)),
    ("gpt-neox", ARCH.GPTNEOX, keys(head_count_kv=32)),
    (
        "gpt2",
        ARCH.GPT2,
        {
            "block_count": 3,
            "context_length": 64,
            "embedding_length": 48,
            "feed_forward_length": 192,
            "head_count": 6,
        },
    ),
    (
        "deepseek-v2",
        ARCH.DEEPSEEK2,
        # as before llama.cpp computed with latents: the heads' own sizes
        keys(**LATENT | {"expert_shared_count": 2}, head_count_kv=32, key_length=20, value_length=10),
    ),
    (
        "deepseek-v2",
        ARCH.DEEPSEEK2,
        keys(
            **LATENT | {"expert_shared_count": 2},
            head_count_kv=1,
            key_length=40,
            value_length=32,
            key_length_mla=20,
            value_length_mla=10,
        ),
    ),
    (
        "deepseek-v3",
        ARCH.DEEPSEEK2,
        keys(
            **LATENT,
            head_count_kv=1,
            q_lora_rank=28,
            key_length=40,
            value_length=32,
            key_length_mla=20,
            value_length_mla=10,
        ),
    ),
    ("gpt-oss", ARCH.GPT_OSS, keys(**HEADS, **EXPERTS, expert_feed_forward_length=80, sliding_window=16)),
]


@pytest.mark.parametrize(("name", "architecture", "written"), CONVERTED)
def test_a_converted_model_has_the_shape_of_its_configuration(
    tmp_path: Path, name: str, architecture: gguf.MODEL_ARCH, written: dict[str, Any]
) -> None:
    config = tiny(name) | NOT_IN_GGUF
    shape = shape_of_gguf(write_converted(tmp_path / "m.gguf", config, architecture, written), "m")
    expected = shape_of_config(config, "m")
    assert replace(shape, weights_dtype=None, stored_bytes=None, unserved=expected.unserved) == expected
    assert shape.stored_bytes == 2 * expected.parameters


def test_a_window_of_nothing_is_no_window(tmp_path: Path) -> None:
    """The converter writes 0 for Phi 4, whose configuration has null."""
    file = write_converted(tmp_path / "m.gguf", tiny("phi3"), ARCH.PHI3, keys(sliding_window=0))
    assert {layer.window for layer in shape_of_gguf(file, "m").layers} == {None}


def test_without_a_pattern_every_sixth_layer_of_gemma_3_is_full() -> None:
    assert "gemma3.attention.sliding_window_pattern" not in read_header(gemma3_270m_gguf()).metadata
    layers = shape_of_gguf(gemma3_270m_gguf(), "m").layers
    assert [number for number, layer in enumerate(layers) if layer.window is None] == [5, 11, 17]
