from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from kvtide_sizing.errors import InvalidModel, UnsupportedModel
from kvtide_sizing.models import catalog
from kvtide_sizing.models.gguf_header import TENSOR_TYPES, read_header, shape_of_gguf

HIDDEN, INTERMEDIATE, VOCABULARY = 32, 64, 40


def write_model(
    file: Path,
    *,
    architecture: str = "llama",
    untied: bool = False,
    tokenizer: tuple[str, str] | None = None,
    **changes: Any,
) -> Path:
    """A Llama of one layer, two query heads and one KV head, by the reference writer of the format."""
    writer = gguf.GGUFWriter(file, architecture)
    if tokenizer is not None:
        writer.add_tokenizer_model(tokenizer[0])
        writer.add_tokenizer_pre(tokenizer[1])
    values = {
        "block_count": 1,
        "context_length": 512,
        "embedding_length": HIDDEN,
        "feed_forward_length": INTERMEDIATE,
        "attention.head_count": 2,
        "attention.head_count_kv": 1,
    } | changes
    for key, value in values.items():
        writer.add_uint32(f"{architecture}.{key}", value)
    writer.add_token_list(["a", "bc"])
    writer.add_array("some.numbers", [1, 2, 3])
    writer.add_bool("some.flag", True)
    writer.add_float64("some.float", 0.5)
    kv_width = HIDDEN // 2
    shapes = {
        "token_embd": (VOCABULARY, HIDDEN),
        "output_norm": (HIDDEN,),
        "rope_freqs": (8,),
        "blk.0.attn_q": (HIDDEN, HIDDEN),
        "blk.0.attn_k": (kv_width, HIDDEN),
        "blk.0.attn_v": (kv_width, HIDDEN),
        "blk.0.attn_output": (HIDDEN, HIDDEN),
        "blk.0.attn_norm": (HIDDEN,),
        "blk.0.ffn_norm": (HIDDEN,),
        "blk.0.ffn_gate": (INTERMEDIATE, HIDDEN),
        "blk.0.ffn_up": (INTERMEDIATE, HIDDEN),
        "blk.0.ffn_down": (HIDDEN, INTERMEDIATE),
    } | ({"output": (VOCABULARY, HIDDEN)} if untied else {})
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", np.zeros(shape, np.float32 if len(shape) == 1 else np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def test_a_real_file_gives_the_built_in_shape(smollm2_file: Path) -> None:
    shape = shape_of_gguf(smollm2_file, "smollm2-135m")
    assert shape.weights_dtype == "Q4_1"
    assert shape.to_json() | {"weightsDtype": None} == catalog.builtin("smollm2-135m").to_json()


def test_the_header_is_what_the_reference_reader_reads(smollm2_file: Path) -> None:
    reference = gguf.GGUFReader(smollm2_file)
    header = read_header(smollm2_file)
    assert {(tensor.name, tuple(tensor.shape.tolist()), tensor.tensor_type.name) for tensor in reference.tensors} == {
        (tensor.name, tensor.dims, tensor.type) for tensor in header.tensors.values()
    }
    tokens = reference.get_field("tokenizer.ggml.tokens")
    assert tokens is not None
    assert header.metadata["tokenizer.ggml.tokens"] == len(tokens.data)
    for key in ("general.architecture", "llama.rope.freq_base", "llama.attention.layer_norm_rms_epsilon"):
        field = reference.get_field(key)
        assert field is not None
        assert header.metadata[key] == field.contents()


def test_the_table_of_types_is_ggmls() -> None:
    for number, (name, elements, size) in TENSOR_TYPES.items():
        kind = gguf.GGMLQuantizationType(number)
        assert (kind.name, *gguf.GGML_QUANT_SIZES[kind]) == (name, elements, size)


@pytest.mark.parametrize(("untied", "embeddings"), [(False, VOCABULARY * HIDDEN), (True, 2 * VOCABULARY * HIDDEN)])
def test_a_written_model_is_counted(tmp_path: Path, untied: bool, embeddings: int) -> None:
    shape = shape_of_gguf(write_model(tmp_path / "m.gguf", untied=untied), "m")
    layer = 2 * HIDDEN * HIDDEN + 2 * HIDDEN * HIDDEN // 2 + 3 * HIDDEN * INTERMEDIATE + 2 * HIDDEN
    assert shape.parameters == embeddings + layer + HIDDEN
    assert shape.tied_embeddings is not untied
    assert (shape.query_heads, shape.kv_heads, shape.head_dim, shape.vocab_size) == (2, 1, HIDDEN // 2, VOCABULARY)
    assert (shape.max_context_tokens, shape.weights_dtype) == (512, "F16")


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"architecture": "gemma3"}, UnsupportedModel, "architecture gemma3.*; llama is"),
        ({"expert_count": 8}, UnsupportedModel, "mixture of experts"),
        ({"attention.value_length": 8}, UnsupportedModel, "key heads of 16 and value heads of 8"),
        ({"attention.head_count_kv": 3}, InvalidModel, "2 query heads cannot be shared by 3 KV heads"),
        # 40·32 + 2·32·32 + 2·16·32 + 3·32·64 + 3·32 = 10592, and 3·32 more for one more row of each MLP matrix
        ({"feed_forward_length": 65}, InvalidModel, "metadata describes 10688 parameters, its tensors hold 10592"),
        ({"block_count": 2}, InvalidModel, "contradicts itself"),
        ({"attention.head_count": 0}, InvalidModel, "its query heads is 0"),
    ],
)
def test_what_is_not_served_or_contradicts_itself_is_refused(
    tmp_path: Path, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        shape_of_gguf(write_model(tmp_path / "m.gguf", **changes), "m")


def test_a_tokenizer_that_no_worker_reads_is_refused_before_one_starts(tmp_path: Path) -> None:
    shape_of_gguf(write_model(tmp_path / "smol.gguf", tokenizer=("gpt2", "smollm")), "smol")
    with pytest.raises(UnsupportedModel, match=r"tokenizer llama/default.*; gpt2/gpt-2, gpt2/smollm are"):
        shape_of_gguf(write_model(tmp_path / "llama.gguf", tokenizer=("llama", "default")), "llama")


def test_a_file_cut_short_anywhere_is_refused(tmp_path: Path) -> None:
    whole = write_model(tmp_path / "whole.gguf").read_bytes()
    cut = tmp_path / "cut.gguf"
    for length in [*range(0, len(whole) - 1, 97), len(whole) - 1]:
        cut.write_bytes(whole[:length])
        with pytest.raises(InvalidModel, match=r"cut short|not a GGUF file"):
            read_header(cut)


@pytest.mark.parametrize(
    ("at", "replacement", "error", "message"),
    [
        (0, b"GGML", InvalidModel, "begins with b'GGML'"),
        (4, (1).to_bytes(4, "little"), InvalidModel, "version 1; versions 2 and 3"),
        (4, (3).to_bytes(4, "big"), InvalidModel, "little-endian"),
        (16, (2**60).to_bytes(8, "little"), InvalidModel, "cut short|metadata"),
        (24, (2**62).to_bytes(8, "little"), InvalidModel, "cut short"),
    ],
)
def test_a_foreign_file_is_refused(
    tmp_path: Path, at: int, replacement: bytes, error: type[Exception], message: str
) -> None:
    file = write_model(tmp_path / "m.gguf")
    data = bytearray(file.read_bytes())
    data[at : at + len(replacement)] = replacement
    file.write_bytes(data)
    with pytest.raises(error, match=message):
        read_header(file)


def test_version_2_is_read_as_version_3(tmp_path: Path) -> None:
    file = write_model(tmp_path / "m.gguf")
    newer = read_header(file)
    data = bytearray(file.read_bytes())
    data[4:8] = (2).to_bytes(4, "little")
    file.write_bytes(data)
    assert read_header(file) == newer
