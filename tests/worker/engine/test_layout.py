"""A plan's layers: what each stores, and what is not a plan for this model or this worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvtide_sizing.errors import InvalidPlan, UnsupportedPrecision
from kvtide_sizing.formats import BF16, FLOAT32, INT4, INT8, LayerFormat
from kvtide_sizing.plan.record import Plan
from kvtide_worker.engine.layout import ServedKv, served_kv
from kvtide_worker.models.checkpoint import open_checkpoint
from tests.worker.engine.harness import plan_for
from tests.worker.models.tiny import save_tiny_llama


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six layers of two KV heads of 64."""
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny_llama(folder, num_hidden_layers=6, head_dim=64)
    return folder


def served(model: Path, precision: str, *, exact: bool = False, **changes: Any) -> ServedKv:
    planned = plan_for(model, num_blocks=64, block_size=16, max_context=64, batch_limit=2, precision=precision)
    planned["kv"] |= changes
    return served_kv(model, Plan.from_json(planned), open_checkpoint(model).config, exact=exact)


def run(layers: str, key: str, value: str) -> dict[str, str]:
    return {"layers": layers, "key": key, "value": value}


def test_layers_store_what_the_plan_lists(model: Path) -> None:
    """Of Mixed any layer may store anything. 2 heads · (64 + 2 + 32 + 4 bytes) in four layers, 2 · 256 in two."""
    layers = [run("0", "BF16", "BF16"), run("1-4", "INT8", "INT4"), run("5", "BF16", "BF16")]
    bytes_per_token = 4 * 2 * (66 + 36) + 2 * 2 * 256
    kv = served(model, "Mixed", layers=layers, bytesPerToken=bytes_per_token, bytesPerBlock=16 * bytes_per_token)
    bf16, k8v4 = LayerFormat(BF16, BF16), LayerFormat(INT8, INT4)
    assert kv.formats == (bf16, k8v4, k8v4, k8v4, k8v4, bf16)
    assert (kv.layout.block_bytes, kv.layout.recent) == (16 * bytes_per_token, 32)


@pytest.mark.parametrize("layers", [[], [run("0-5", "INT4", "INT4")]])
def test_an_older_plan_lists_none(model: Path, layers: list[dict[str, str]]) -> None:
    assert served(model, "INT4", layers=layers).formats == (LayerFormat(INT4, INT4),) * 6


def test_float32_takes_the_place_of_bf16(model: Path) -> None:
    kv = served(model, "BF16", exact=True)
    assert kv.formats == (LayerFormat(FLOAT32, FLOAT32),) * 6
    assert kv.layout.block_bytes == 16 * 6 * 2 * 2 * 64 * 4
    with pytest.raises(UnsupportedPrecision, match="float32 is for plans of BF16, but this one stores KV as INT8"):
        served(model, "INT8", exact=True)


@pytest.mark.parametrize(
    ("layers", "error", "message"),
    [
        (
            [run("0-5", "FP8", "INT8")],
            UnsupportedPrecision,
            "stores vectors as FP8; this worker stores BF16, INT8, INT4",
        ),
        ([run("0-4", "INT8", "INT8")], InvalidPlan, "the plan has 5 layers, but the model 6"),
        ([run("1-5", "INT8", "INT8")], InvalidPlan, "layers 1-5 stand where layer 0 is next"),
        (
            [run("0-2", "INT8", "INT8"), run("2-5", "INT8", "INT8")],
            InvalidPlan,
            "layers 2-5 stand where layer 3 is next",
        ),
        ([run("5-0", "INT8", "INT8")], InvalidPlan, "layers 5-0"),
        ([run("all", "INT8", "INT8")], InvalidPlan, "layers 'all' are not written as 3-7, nor as 3"),
        ([run("0-5", "INT8", "INT4")], InvalidPlan, "precision is INT8, but not all of its layers are stored so"),
    ],
)
def test_what_is_no_list_of_this_models_layers(
    model: Path, layers: list[dict[str, str]], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        served(model, "INT8", layers=layers)
