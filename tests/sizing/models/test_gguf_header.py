from collections.abc import Callable
from pathlib import Path

import gguf
import pytest

from devcluster.model import gemma3_270m_gguf, smollm2_gguf
from kvtide_sizing.errors import InvalidModel
from kvtide_sizing.models.gguf_header import TENSOR_TYPES, read_header
from tests.sizing.models.gguf_files import write_model


@pytest.mark.parametrize("file", [smollm2_gguf, pytest.param(gemma3_270m_gguf, marks=pytest.mark.slow)])
def test_the_header_is_what_the_reference_reader_reads(file: Callable[[], Path]) -> None:
    reference = gguf.GGUFReader(file())
    header = read_header(file())
    assert {(tensor.name, tuple(tensor.shape.tolist()), tensor.tensor_type.name) for tensor in reference.tensors} == {
        (tensor.name, tensor.dims, tensor.type) for tensor in header.tensors.values()
    }
    tokens = reference.get_field("tokenizer.ggml.tokens")
    assert tokens is not None
    assert header.metadata["tokenizer.ggml.tokens"] == len(tokens.data)
    assert sum(tensor.stored_bytes for tensor in header.tensors.values()) == sum(
        int(tensor.n_bytes) for tensor in reference.tensors
    )
    for key, value in header.metadata.items():
        field = reference.get_field(key)
        assert field is not None
        contents = field.contents()
        assert value == (len(contents) if isinstance(contents, list) else contents)


def test_arrays_of_numbers_are_read(tmp_path: Path) -> None:
    metadata = read_header(write_model(tmp_path / "m.gguf")).metadata
    assert metadata["some.numbers"] == (1, 2, 3)
    assert metadata["some.flags"] == (True, False)
    assert metadata["some.texts"] == 2
    assert metadata["tokenizer.ggml.scores"] == 2


def test_the_table_of_types_is_ggmls() -> None:
    for number, (name, elements, size) in TENSOR_TYPES.items():
        kind = gguf.GGMLQuantizationType(number)
        assert (kind.name, *gguf.GGML_QUANT_SIZES[kind]) == (name, elements, size)


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
