"""Well-known models, so that planning works offline.

catalog.json holds, for each of them, the fields of its public config.json that decide about memory, and the hub's
repositories with that very shape. They are read as any other configuration is. Of some, sensitivity.json has what was
measured of their layers.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from kvtide_sizing.errors import ModelNotFound
from kvtide_sizing.models.config_json import shape_of_config
from kvtide_sizing.models.model_uri import ModelUri
from kvtide_sizing.models.sensitivity import measurements, with_measurement
from kvtide_sizing.shape import ModelShape

_FILE = Path(__file__).with_name("catalog.json")


def names() -> tuple[str, ...]:
    """The built-in models."""
    return tuple(_entries())


def builtin(name: str) -> ModelShape:
    """The shape of a built-in model. Raises ModelNotFound with the names there are."""
    return _shape(name.lower())


def config(name: str) -> dict[str, Any]:
    """A built-in model's configuration, in the fields of its config.json. Raises as `builtin`."""
    entry = _entries().get(name.lower())
    if entry is None:
        raise ModelNotFound(f"no built-in model is called '{name}'; built in are {', '.join(names())}")
    found: dict[str, Any] = entry["config"]
    return found


def builtin_for(uri: ModelUri) -> ModelShape | None:
    """The shape of a hub repository that is built in, at its main revision; None where the files must be read."""
    if uri.repo is None or uri.revision not in (None, "main"):
        return None
    name = _repositories().get(uri.repo.lower())
    return None if name is None else builtin(name)


def measured_alike(shape: ModelShape) -> ModelShape:
    """The shape with what was measured of a built-in model of the same sizes: itself, as a rule, or one tuned from it.

    The shape as it is where there is none.
    """
    for name, measurement in measurements().items():
        if _sizes(builtin(name)) == _sizes(shape):
            return with_measurement(shape, measurement)
    return shape


def _sizes(shape: ModelShape) -> tuple[object, ...]:
    return shape.architecture, shape.layers, shape.query_heads, shape.hidden_size, shape.vocab_size, shape.parameters


# Read when first asked for: most who import this never ask.
@functools.cache
def _entries() -> dict[str, dict[str, Any]]:
    entries: dict[str, dict[str, Any]] = json.loads(_FILE.read_bytes())
    return entries


@functools.cache
def _shape(name: str) -> ModelShape:
    shape, measurement = shape_of_config(config(name), name), measurements().get(name)
    return shape if measurement is None else with_measurement(shape, measurement)


@functools.cache
def _repositories() -> dict[str, str]:
    """Repositories in lower case, the hub does not tell cases apart, and what they are called here."""
    return {repository: name for name, entry in _entries().items() for repository in entry["repositories"]}
