"""A model's shape from a GGUF file's header; the weights behind it are not read.

Layout (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), little-endian:

    "GGUF" version:u32 tensors:u64 entries:u64 | entries: key, type, value | tensors: name, dims, type, offset | data
"""

from __future__ import annotations

import math
import mmap
import struct
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvtide_sizing.errors import InvalidModel, UnsupportedModel
from kvtide_sizing.models.llama import ARCHITECTURE, llama_shape
from kvtide_sizing.shape import ModelShape

_VERSIONS = (2, 3)
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MOST_DIMS = 4
_DEFAULT_ALIGNMENT = 32

# ggml's type number: name, elements of a block, bytes of a block (ggml.c, `type_traits`).
TENSOR_TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
}


@dataclass(frozen=True)
class TensorInfo:
    """One tensor: dims as GGUF orders them, the row's length first; type is ggml's name."""

    name: str
    dims: tuple[int, ...]
    type: str

    @property
    def elements(self) -> int:
        """How many values it has."""
        return math.prod(self.dims)


@dataclass(frozen=True)
class GgufHeader:
    """The metadata's single values (of an array: how many it has) and the tensors by name."""

    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]


def read_header(file: Path) -> GgufHeader:
    """Read a GGUF file's header, and check that the file is long enough for its tensors.

    Raises InvalidModel for a file that is not GGUF, of another version, or cut short; UnsupportedModel for a type
    of tensor that is not known.
    """
    size = file.stat().st_size
    if size < 24:
        raise InvalidModel(f"{file} is not a GGUF file: it has {size} bytes")
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return _Cursor(data, str(file)).header()


# Kind and pre-tokenizer, as tokenizer.ggml.model and tokenizer.ggml.pre name them.
SERVED_TOKENIZERS = (("gpt2", "gpt-2"), ("gpt2", "smollm"))


def shape_of_gguf(file: Path, name: str) -> ModelShape:
    """The shape of a GGUF file. Raises as `read_header`, UnsupportedModel for other architectures than llama, and
    InvalidModel where metadata and tensors contradict each other."""
    header = read_header(file)
    metadata = header.metadata
    architecture = metadata.get("general.architecture")
    if architecture != ARCHITECTURE:
        raise UnsupportedModel(f"{name} is of architecture {architecture}, which is not served; {ARCHITECTURE} is")
    if metadata.get("llama.expert_count"):
        raise UnsupportedModel(f"{name} is a mixture of experts, which is not served; a dense Llama is")

    tokenizer = (metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre"))
    if tokenizer[0] is not None and tokenizer not in SERVED_TOKENIZERS:
        served = ", ".join(f"{kind}/{pre}" for kind, pre in SERVED_TOKENIZERS)
        raise UnsupportedModel(
            f"{name} has the tokenizer {tokenizer[0]}/{tokenizer[1]}, which is not served from a GGUF file; {served} "
            f"are, and any from a folder with tokenizer.json"
        )

    def field(key: str, default: int | None = None) -> int:
        value = metadata.get(f"llama.{key}", default)
        if type(value) is not int:
            raise InvalidModel(f"{name} has no number of llama.{key}: {value!r}")
        return value

    embedding = header.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.dims) != 2:
        raise InvalidModel(f"{name} has no token_embd.weight of two dimensions")
    query_heads = field("attention.head_count")
    head_dim = field("attention.key_length") if "llama.attention.key_length" in metadata else None
    weights = [tensor for tensor in header.tensors.values() if tensor.name != "rope_freqs.weight"]
    shape = llama_shape(
        name,
        num_layers=field("block_count"),
        hidden_size=field("embedding_length"),
        intermediate_size=field("feed_forward_length"),
        query_heads=query_heads,
        kv_heads=field("attention.head_count_kv", query_heads),
        vocab_size=embedding.dims[1],
        max_context_tokens=field("context_length"),
        tied_embeddings="output.weight" not in header.tensors,
        head_dim=head_dim,
        weights_dtype=_commonest_type(weights),
    )
    if field("attention.value_length", shape.head_dim) != shape.head_dim:
        raise UnsupportedModel(
            f"{name} has key heads of {shape.head_dim} and value heads of {field('attention.value_length')}, "
            f"which is not served; equal ones are"
        )
    stored = sum(tensor.elements for tensor in weights)
    if stored != shape.parameters:
        raise InvalidModel(
            f"{name} contradicts itself: its metadata describes {shape.parameters} parameters, "
            f"its tensors hold {stored}"
        )
    return shape


def _commonest_type(tensors: list[TensorInfo]) -> str:
    elements: Counter[str] = Counter()
    for tensor in tensors:
        elements[tensor.type] += tensor.elements
    return elements.most_common(1)[0][0]


class _Cursor:
    """A place in a mapped file that only goes forward, and never past its end."""

    def __init__(self, data: mmap.mmap, source: str) -> None:
        self._data = data
        self._source = source
        self._at = 0

    def header(self) -> GgufHeader:
        if self._bytes(4) != b"GGUF":
            raise InvalidModel(f"{self._source} is not a GGUF file: it begins with {self._data[:4]!r}")
        version = self._number("I")
        if version not in _VERSIONS:
            raise InvalidModel(
                f"{self._source} is GGUF of version {version}; versions {_VERSIONS[0]} and {_VERSIONS[1]} "
                f"in little-endian are read"
            )
        num_tensors, num_entries = self._number("Q"), self._number("Q")
        metadata: dict[str, Any] = {}
        for _ in range(num_entries):
            key = self._string()
            metadata[key] = self._value(self._number("I"))
        tensors: dict[str, TensorInfo] = {}
        end = 0
        for _ in range(num_tensors):
            tensor, tensor_end = self._tensor()
            tensors[tensor.name] = tensor
            end = max(end, tensor_end)
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if type(alignment) is not int or alignment < 1:
            raise InvalidModel(f"{self._source} has a general.alignment of {alignment!r}; it is a number of bytes")
        needed = -(-self._at // alignment) * alignment + end
        if needed > len(self._data):
            raise InvalidModel(
                f"{self._source} is cut short: its header describes {needed} bytes, it has {len(self._data)}"
            )
        return GgufHeader(metadata, tensors)

    def _tensor(self) -> tuple[TensorInfo, int]:
        """A tensor, and where it ends in the file's data."""
        name = self._string()
        num_dims = self._number("I")
        if not 1 <= num_dims <= _MOST_DIMS:
            raise InvalidModel(f"{self._source} has a tensor '{name}' of {num_dims} dimensions")
        dims = tuple(self._number("Q") for _ in range(num_dims))
        number, offset = self._number("I"), self._number("Q")
        if number not in TENSOR_TYPES:
            raise UnsupportedModel(f"{self._source} has '{name}' in ggml's type {number}, which is not known")
        type_name, block_elements, block_bytes = TENSOR_TYPES[number]
        tensor = TensorInfo(name, dims, type_name)
        return tensor, offset + -(-tensor.elements // block_elements) * block_bytes

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._skip_array()
        if kind not in _SCALARS:
            raise InvalidModel(f"{self._source} has a value of type {kind} in its metadata, which GGUF does not know")
        return self._number(_SCALARS[kind])

    def _skip_array(self) -> int:
        """Pass over an array, a vocabulary for one, and say how many values it has."""
        kind, count = self._number("I"), self._number("Q")
        if kind in _SCALARS:
            self._bytes(count * struct.calcsize(_SCALARS[kind]))
        elif kind == _STRING:
            for _ in range(count):
                self._bytes(self._number("Q"))
        else:
            raise InvalidModel(f"{self._source} has an array of type {kind} in its metadata, which is not read")
        return int(count)

    def _string(self) -> str:
        return self._bytes(self._number("Q")).decode("utf-8", errors="replace")

    def _number(self, code: str) -> Any:
        return struct.unpack("<" + code, self._bytes(struct.calcsize("<" + code)))[0]

    def _bytes(self, length: int) -> bytes:
        end = self._at + length
        if end > len(self._data):
            raise InvalidModel(
                f"{self._source} is cut short: its header goes on at byte {self._at}, it has {len(self._data)}"
            )
        taken = self._data[self._at : end]
        self._at = end
        return taken
