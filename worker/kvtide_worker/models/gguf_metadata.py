"""A GGUF file's header: single values by key, and where each tensor lies."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from kvtide_sizing.errors import UnsupportedModel

_ARRAY_HEADER = struct.Struct("<IQ")  # type of the items, number of items
_STRING_LENGTH = struct.Struct("<Q")


class _Reader(gguf.GGUFReader):
    """The package's reader without the arrays: the tokenizer's are nearly all of its time, and unused here."""

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], list[int], list[Any]]:
        if raw_type != gguf.GGUFValueType.ARRAY:
            parts: tuple[int, list[Any], list[int], list[Any]] = super()._get_field_parts(orig_offs, raw_type)
            return parts
        buffer = self.data.data
        item_type, length = _ARRAY_HEADER.unpack_from(buffer, orig_offs)
        end = orig_offs + _ARRAY_HEADER.size
        if item_type == gguf.GGUFValueType.STRING:
            for _ in range(length):
                end += _STRING_LENGTH.size + _STRING_LENGTH.unpack_from(buffer, end)[0]
        else:
            end += length * np.dtype(self.gguf_scalar_to_np[item_type]).itemsize
        return end - orig_offs, [], [], [gguf.GGUFValueType.ARRAY]


class GgufMetadata:
    """The header of the file at path; `tensors` by name, their data mapped and not read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reader = _Reader(path)
        self.tensors: dict[str, gguf.ReaderTensor] = {tensor.name: tensor for tensor in self._reader.tensors}

    @property
    def architecture(self) -> str:
        """The family's name. Raises UnsupportedModel where the file has none."""
        return str(self.field("general.architecture"))

    def field(self, key: str, default: Any = None) -> Any:
        """A single value, or the default. Raises UnsupportedModel for a list, and where there is neither."""
        field = self._reader.get_field(key)
        if field is not None and field.types == [gguf.GGUFValueType.ARRAY]:
            raise UnsupportedModel(f"{self.path} has one {key} per layer; this worker runs equal layers")
        if field is not None:
            return field.contents()
        if default is None:
            raise UnsupportedModel(f"{self.path} has no {key}, which a model in GGUF must have")
        return default

    def own(self, key: str, default: Any = None) -> Any:
        """A value under the architecture's name, as `field`."""
        return self.field(f"{self.architecture}.{key}", default)
