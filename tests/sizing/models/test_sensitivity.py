"""What was measured of a model's layers: read, kept with the right models, and what Mixed becomes of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvtide_sizing.devices.device import device_named
from kvtide_sizing.errors import InvalidModel
from kvtide_sizing.formats import Precision, layer_formats
from kvtide_sizing.models import catalog, sensitivity
from kvtide_sizing.models.inspect import inspect_model
from kvtide_sizing.models.sensitivity import with_measurement
from kvtide_sizing.plan import Plan, Policy, Workload, plan
from kvtide_sizing.plan.explain import explain
from kvtide_sizing.shape import LayerSensitivity, ModelShape, SideSensitivity

MODEL = "smollm2-135m"


def measurement(layers: int = 30) -> dict[str, Any]:
    """The first layer and the last one lose a hundred times what the others do, values less than keys."""
    each = [0.5 if index in (0, layers - 1) else 0.005 for index in range(layers)]
    sides = [{"key": {"INT8": x / 5, "INT4": x}, "value": {"INT8": x / 10, "INT4": x / 2}} for x in each]
    return {"model": MODEL, "text": "a text", "tokens": 4096, "layers": sides}


@pytest.fixture
def shipped(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if the file had it."""
    catalog._shape.cache_clear()
    monkeypatch.setattr(catalog, "measurements", lambda: {MODEL: measurement()})
    yield
    catalog._shape.cache_clear()


def test_what_the_command_writes_is_read() -> None:
    shape = with_measurement(catalog.builtin(MODEL), json.loads(json.dumps(measurement())))
    assert shape.sensitivity is not None
    assert shape.sensitivity[1] == LayerSensitivity(SideSensitivity(0.001, 0.005), SideSensitivity(0.0005, 0.0025))
    assert shape == catalog.builtin(MODEL)  # the sizes are the same


@pytest.mark.usefixtures("shipped")
def test_a_built_in_model_has_its_own(smollm2_file: Path) -> None:
    """And a file of the same sizes, a model that was tuned from it; no other model has any."""
    assert catalog.builtin(MODEL).sensitivity is not None
    assert inspect_model(smollm2_file).sensitivity == catalog.builtin(MODEL).sensitivity
    assert [name for name in catalog.names() if catalog.builtin(name).sensitivity is not None] == [MODEL]
    travelled = ModelShape.from_json(inspect_model(smollm2_file).to_json())
    assert travelled.sensitivity is None
    assert catalog.measured_alike(travelled).sensitivity == catalog.builtin(MODEL).sensitivity


def test_what_is_shipped_is_of_its_model() -> None:
    for name, data in sensitivity.measurements().items():
        measured = catalog.builtin(name)
        assert measured.sensitivity is not None
        assert data["tokens"] >= 500
        # What it is for: fewer bits are worse, and keys and values that lose nothing were not measured.
        assert all(0 < side.int8 < side.int4 for layer in measured.sensitivity for side in (layer.key, layer.value))


def planned(shape: ModelShape) -> Plan:
    return plan(shape, device_named("cpu:2GiB"), Workload(max_context_tokens=2048), Policy("Mixed"))


def test_the_plan_has_each_layers_formats() -> None:
    """9,180 bytes a token in K8V4, 30 · 3 · (66 + 36): the two that lose most are as they are, for less in others."""
    shape = with_measurement(catalog.builtin(MODEL), measurement())
    made = planned(shape)
    read = []
    for run in made.kv.layers:
        first, _, last = run.layers.partition("-")
        read += [(run.key, run.value)] * (int(last or first) - int(first) + 1)
    assert read == [(each.key.name, each.value.name) for each in layer_formats(shape, Precision.MIXED)]
    assert read[0] == read[-1] == ("BF16", "BF16")
    assert made.kv.bytes_per_token <= 30 * 3 * (66 + 36)
    size = {"BF16": 128, "INT8": 66, "INT4": 36}
    assert made.kv.bytes_per_token == sum(3 * (size[key] + size[value]) for key, value in read)


def test_the_plan_says_how_mixed_was_chosen() -> None:
    shape, device = catalog.builtin(MODEL), device_named("cpu:2GiB")
    rule = planned(replace(shape, sensitivity=None))
    assert "edge layers in BF16 and K8V4 between" in rule.reasons[0]
    assert [(run.layers, run.key, run.value) for run in rule.kv.layers] == [
        ("0-1", "BF16", "BF16"),
        ("2-27", "INT8", "INT4"),
        ("28-29", "BF16", "BF16"),
    ]
    measured = with_measurement(shape, measurement())
    made = planned(measured)
    assert "Mixed: as asked, measured" in made.reasons[0]
    lines = explain(made, measured, device, Workload(max_context_tokens=2048), Policy("Mixed"))
    total = sum(int(line.rsplit("= ", 1)[1].split()[0].replace(",", "")) for line in lines if "bytes a token" in line)
    assert total == made.kv.bytes_per_token


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": measurement(29)["layers"]}, "29 layers of smollm2-135m, but smollm2-135m has 30; measure"),
        ({"layers": None}, "not a sensitivity as `kvtide quality --sensitivity` writes it"),
        ({"layers": [{"key": {"INT8": 1}}] * 30}, "KeyError 'INT4'"),
        ({"layers": [{side: {"INT8": -1, "INT4": 1} for side in ("key", "value")}] * 30}, "a loss of -1"),
        ({"layers": [{side: {"INT8": 1, "INT4": "nan"} for side in ("key", "value")}] * 30}, "a loss of nan"),
    ],
)
def test_what_is_no_sensitivity_of_the_model_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidModel, match=message):
        with_measurement(catalog.builtin(MODEL), measurement() | change)
