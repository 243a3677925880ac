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
_INDEX = "model.safetensors.index.json"
_MOST_HEADER_BYTES = 100_000_000  # the format's own bound


@dataclass(frozen=True)
class StoredWeights:
    """All tensors of a folder: how many elements, and the type that most of them have."""

    elements: int
    dtype: str


def read_folder(folder: Path) -> StoredWeights | None:
    """What the folder's safetensors files hold; None where there are none.

    Raises InvalidModel for a missing shard and for a file that is cut short or not safetensors.
    """
    elements: Counter[str] = Counter()
    for file in _files(folder):
        for tensor in _header(file).values():
            elements[tensor["dtype"]] += math.prod(tensor["shape"])
    if not elements:
        return None
    return StoredWeights(sum(elements.values()), dtype=elements.most_common(1)[0][0])


def _files(folder: Path) -> list[Path]:
    index = folder / _INDEX
    if index.is_file():
        try:
            shards = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise InvalidModel(f"{index} is no index of safetensors files: {error}") from error
        missing = [shard for shard in shards if not (folder / shard).is_file()]
        if missing:
            raise InvalidModel(f"{folder} lacks {', '.join(missing)}, which {_INDEX} names")
        return [folder / shard for shard in shards]
    return [folder / _SINGLE] if (folder / _SINGLE).is_file() else []


def _header(file: Path) -> dict[str, Any]:
    """Tensor name to its entry. A file is: length of the header (u64), the header as JSON, the tensors' bytes."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 2 <= length <= min(size - 8, _MOST_HEADER_BYTES):
            raise InvalidModel(f"{file} is not a safetensors file, or cut short: {size} bytes")
        try:
            header: dict[str, Any] = json.loads(stream.read(length))
            header.pop("__metadata__", None)
            end = 8 + length + max((tensor["data_offsets"][1] for tensor in header.values()), default=0)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise InvalidModel(f"{file} has no header of safetensors: {error}") from error
    if end > size:
        raise InvalidModel(f"{file} is cut short: its header describes {end} bytes, it has {size}")
    return header
