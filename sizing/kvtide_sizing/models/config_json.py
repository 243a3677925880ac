"""A model's shape from Hugging Face's config.json."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvtide_sizing.errors import InvalidModel
from kvtide_sizing.models.config import Config
from kvtide_sizing.models.quantization import BITS, quantized_format
from kvtide_sizing.models.registry import read_shape
from kvtide_sizing.models.safetensors_header import StoredWeights, read_folder
from kvtide_sizing.models.served import why_unserved
from kvtide_sizing.shape import ModelShape

CONFIG_FILE = "config.json"


def shape_of_folder(folder: Path, name: str) -> ModelShape:
    """The shape of a folder with config.json, checked against its safetensors headers where it has them.

    Raises InvalidModel and UnsupportedModel as `shape_of_config`, and InvalidModel for weights that the
    configuration needs and the files lack.
    """
    shape = shape_of_config(json_object((folder / CONFIG_FILE).read_bytes(), str(folder / CONFIG_FILE)), name)
    stored = read_folder(folder)
    if stored is None:
        return shape
    _check_all_there(shape, stored)
    return dataclasses.replace(
        shape, weights_dtype=shape.weights_dtype or stored.dtype, stored_bytes=stored.stored_bytes
    )


def json_object(data: bytes, source: str) -> dict[str, Any]:
    """The JSON object in data. Raises InvalidModel, which names the source, for anything else."""
    try:
        value = json.loads(data)
    except ValueError as error:
        raise InvalidModel(f"{source} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidModel(f"{source} holds no JSON object")
    return value


def shape_of_config(fields: Mapping[str, Any], name: str) -> ModelShape:
    """The shape that a configuration describes; what the worker does not run is said in `unserved`.

    Raises UnsupportedModel for an architecture, a kind of attention or a quantisation that is not known, InvalidModel
    for fields that are missing, of another type, or contradict each other.
    """
    config = Config(fields, name)
    shape = read_shape(config)
    return dataclasses.replace(
        shape, weights_dtype=quantized_format(config), unserved=why_unserved(config, shape.architecture)
    )


def _check_all_there(shape: ModelShape, stored: StoredWeights) -> None:
    """Files may hold more than is needed: a head though it is tied, scales, or layers that are not run."""
    if shape.weights_dtype is None:
        if stored.elements < shape.parameters:
            raise InvalidModel(
                f"{shape.name} contradicts itself: {CONFIG_FILE} describes {shape.parameters} parameters, "
                f"its safetensors files hold {stored.elements}"
            )
        return
    # Quantised elements are packed into others, so that only their bytes can be compared.
    needed = -(-shape.parameters * BITS[shape.weights_dtype] // 8)
    if stored.stored_bytes < needed:
        raise InvalidModel(
            f"{shape.name} contradicts itself: {CONFIG_FILE} describes {shape.parameters} parameters in "
            f"{shape.weights_dtype}, at least {needed} bytes, its safetensors files hold {stored.stored_bytes}"
        )
