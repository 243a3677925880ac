"""A GGUF file's header; the weights behind it are not read.

Layout (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), little-endian:

    "GGUF" version:u32 tensors:u64 entries:u64 | entries: key, type, value | tensors: name, dims, type, offset | data
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvtide_sizing.errors import InvalidModel, UnsupportedModel

_VERSIONS = (2, 3)
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MOST_DIMS = 4
_TOKENIZER = "tokenizer."
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
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
}


_SIZES = {name: (elements, size) for name, elements, size in TENSOR_TYPES.values()}


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

    @property
    def stored_bytes(self) -> int:
        """What it takes in the file: whole blocks of its type."""
        block_elements, block_bytes = _SIZES[self.type]
        return -(-self.elements // block_elements) * block_bytes


@dataclass(frozen=True)
class GgufHeader:
    """The metadata and the tensors by name. An array of numbers is a tuple; of the tokenizer's, which are large, and of
    arrays of strings there is only how many values they have."""

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
            metadata[key] = self._value(self._number("I"), skim=key.startswith(_TOKENIZER))
        tensors: dict[str, TensorInfo] = {}
        end = 0
        for _ in range(num_tensors):
            tensor, offset = self._tensor()
            tensors[tensor.name] = tensor
            end = max(end, offset + tensor.stored_bytes)
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
        """A tensor, and where it begins in the file's data."""
        name = self._string()
        num_dims = self._number("I")
        if not 1 <= num_dims <= _MOST_DIMS:
            raise InvalidModel(f"{self._source} has a tensor '{name}' of {num_dims} dimensions")
        dims = tuple(self._number("Q") for _ in range(num_dims))
        number, offset = self._number("I"), self._number("Q")
        if number not in TENSOR_TYPES:
            raise UnsupportedModel(f"{self._source} has '{name}' in ggml's type {number}, which is not known")
        return TensorInfo(name, dims, TENSOR_TYPES[number][0]), offset

    def _value(self, kind: int, skim: bool) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array(skim)
        if kind not in _SCALARS:
            raise InvalidModel(f"{self._source} has a value of type {kind} in its metadata, which GGUF does not know")
        return self._number(_SCALARS[kind])

    def _array(self, skim: bool) -> Any:
        """An array's numbers; how many values it has where they are strings, or skimmed over."""
        kind, count = self._number("I"), self._number("Q")
        if kind in _SCALARS:
            size = struct.calcsize(_SCALARS[kind])
            values = self._bytes(count * size)
            return int(count) if skim else struct.unpack(f"<{count}{_SCALARS[kind]}", values)
        if kind != _STRING:
            raise InvalidModel(f"{self._source} has an array of type {kind} in its metadata, which is not read")
        for _ in range(count):
            self._bytes(self._number("Q"))
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
