"""What was measured of models: how much each layer's keys and values lose by being stored in fewer bits.

sensitivity.json holds, by the names of built-in models, what `kvtide quality MODEL --sensitivity FILE` wrote:

    {"smollm2-135m": {"model": …, "text": …, "tokens": …,
                      "layers": [{"key": {"INT8": 0.0001, "INT4": 0.003}, "value": {"INT8": …, "INT4": …}}, …]}}
"""

from __future__ import annotations

import functools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvtide_sizing.errors import InvalidModel
from kvtide_sizing.shape import LayerSensitivity, ModelShape, SideSensitivity

_FILE = Path(__file__).with_name("sensitivity.json")


@functools.cache
def measurements() -> dict[str, dict[str, Any]]:
    """What was written of each built-in model that was measured, by its name."""
    found: dict[str, dict[str, Any]] = json.loads(_FILE.read_bytes())
    return found


def with_measurement(shape: ModelShape, data: dict[str, Any]) -> ModelShape:
    """The shape, and what was measured of it. Raises InvalidModel for JSON of another form, and of other layers."""
    try:
        layers = tuple(LayerSensitivity(_side(layer["key"]), _side(layer["value"])) for layer in data["layers"])
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidModel(
            f"not a sensitivity as `kvtide quality --sensitivity` writes it: {type(error).__name__} {error}"
        ) from error
    if len(layers) != shape.num_layers:
        raise InvalidModel(
            f"the sensitivity is of {len(layers)} layers of {data.get('model')}, but {shape.name} has "
            f"{shape.num_layers}; measure this model with `kvtide quality --sensitivity`"
        )
    return replace(shape, sensitivity=layers)


def _side(data: dict[str, Any]) -> SideSensitivity:
    side = SideSensitivity(int8=float(data["INT8"]), int4=float(data["INT4"]))
    for loss in (side.int8, side.int4):
        if not 0 <= loss < math.inf:
            raise ValueError(f"a loss of {loss}")
    return side
