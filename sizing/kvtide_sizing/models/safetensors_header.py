"""The headers of a folder's safetensors files: what its tensors are, without reading them."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvtide_sizing.errors import InvalidModel

_SINGLE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_MOST_HEADER_BYTES = 100_000_000  # the format's own bound


@dataclass(frozen=True)
class StoredWeights:
    """All tensors of a folder: how many elements, the type that most of them have, and their bytes."""

    elements: int
    dtype: str
    stored_bytes: int


def read_folder(folder: Path) -> StoredWeights | None:
    """What the folder's safetensors files hold; None where there are none.

    Raises InvalidModel for a missing shard and for a file that is cut short or not safetensors.
    """
    elements: Counter[str] = Counter()
    stored_bytes = 0
    for file in _files(folder):
        for tensor in _header(file):
            elements[tensor.dtype] += tensor.elements
            stored_bytes += tensor.end - tensor.begin
    if not elements:
        return None
    return StoredWeights(sum(elements.values()), elements.most_common(1)[0][0], stored_bytes)


def total_size(index: dict[str, Any]) -> int | None:
    """The bytes of all tensors that an index of shards speaks of; None where it does not say."""
    metadata = index.get("metadata")
    size = metadata.get("total_size") if isinstance(metadata, dict) else None
    return size if type(size) is int and size > 0 else None


def _files(folder: Path) -> list[Path]:
    index = folder / INDEX_FILE
    if index.is_file():
        try:
            shards = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise InvalidModel(f"{index} is no index of safetensors files: {error}") from error
        missing = [shard for shard in shards if not (folder / shard).is_file()]
        if missing:
            raise InvalidModel(f"{folder} lacks {', '.join(missing)}, which {INDEX_FILE} names")
        return [folder / shard for shard in shards]
    return [folder / _SINGLE] if (folder / _SINGLE).is_file() else []


@dataclass(frozen=True)
class _Tensor:
    """An entry of a header; begin and end are bytes from the header's end."""

    dtype: str
    elements: int
    begin: int
    end: int


def _header(file: Path) -> list[_Tensor]:
    """A file's tensors. A file is: length of the header (u64), the header as JSON, the tensors' bytes."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 2 <= length <= min(size - 8, _MOST_HEADER_BYTES):
            raise InvalidModel(f"{file} is not a safetensors file, or cut short: {size} bytes")
        try:
            header: dict[str, Any] = json.loads(stream.read(length))
            header.pop("__metadata__", None)
            tensors = [
                _Tensor(str(entry["dtype"]), math.prod(entry["shape"]), *map(int, entry["data_offsets"]))
                for entry in header.values()
            ]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidModel(f"{file} has no header of safetensors: {error}") from error
    end = 8 + length + max((tensor.end for tensor in tensors), default=0)
    if end > size:
        raise InvalidModel(f"{file} is cut short: its header describes {end} bytes, it has {size}")
    return tensors
