"""How a model may be written, and what may not go together."""

import dataclasses
from pathlib import Path

import pytest

from kvtide_sizing.errors import (
    DoesNotFit,
    InvalidModelUri,
    InvalidPlan,
    InvalidWorkload,
    ModelNotFound,
    UnknownDevice,
    UnsupportedPolicy,
    UnsupportedPrecision,
)
from kvtide_sizing.plan.record import AttentionPlan
from kvtide_worker.server.planning import check_plan_options, model_name, model_uri, plan_for
from kvtide_worker.server.settings import ServeSettings


@pytest.mark.parametrize(
    ("text", "uri", "name"),
    [
        ("hf://org/Some-Model@main", "hf://org/Some-Model@main", "Some-Model"),
        ("org/Some-Model", "hf://org/Some-Model", "Some-Model"),
        ("pvc://claim/models/x.gguf", "pvc://claim/models/x.gguf", "x"),
        ("file:///models/folder/", "file:///models/folder", "folder"),
    ],
)
def test_how_a_model_may_be_written(text: str, uri: str, name: str) -> None:
    assert str(model_uri(text)) == uri
    assert model_name(model_uri(text)) == name


def test_a_path_is_one_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.gguf").touch()
    monkeypatch.chdir(tmp_path)
    assert str(model_uri("model.gguf")) == f"file://{tmp_path}/model.gguf"


def test_a_link_keeps_its_name(tmp_path: Path) -> None:
    """A hub's cache has models as links to files that are named by their content."""
    (tmp_path / "0a1b2c").touch()
    (tmp_path / "model.gguf").symlink_to(tmp_path / "0a1b2c")
    assert str(model_uri(str(tmp_path / "model.gguf"))) == f"file://{tmp_path}/model.gguf"


@pytest.mark.parametrize(
    ("text", "error"),
    [("nothing-here.gguf", ModelNotFound), ("/no/such/model", ModelNotFound), ("s3://bucket/x", InvalidModelUri)],
)
def test_what_is_no_model(text: str, error: type[Exception]) -> None:
    with pytest.raises(error, match=text):
        model_uri(text)


def test_a_plan_has_fixed_what_options_would_choose(tmp_path: Path) -> None:
    plan_file = tmp_path / "plan.json"
    settings = ServeSettings(
        model="x", plan_file=plan_file, memory_bytes=1, max_batch=2, precision="INT8", weights="INT8"
    )
    with pytest.raises(InvalidWorkload, match="--memory, --precision, --weights, --max-batch"):
        check_plan_options(settings)


@pytest.mark.parametrize(("text", "says"), [("{", "not JSON"), ("{}", "not a plan")])
def test_a_broken_plan_is_named(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "plan.json"
    file.write_text(text)
    with pytest.raises(InvalidPlan, match=says):
        plan_for(ServeSettings(model="x", plan_file=file), tmp_path)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"max_context_tokens": 9000}, InvalidWorkload, "8192"),  # what SmolLM2 was made for
        ({"block_size_tokens": 17}, InvalidWorkload, "16, 32, 64, 128, 256"),
        ({"memory_bytes": 200 << 20}, DoesNotFit, "but the device has 200"),
        ({"precision": "FP8"}, UnsupportedPrecision, "FP8 is not served by this release"),
        (
            {"weights": "INT4"},
            UnsupportedPrecision,
            "weightPrecision INT4 is not served by this release; write BF16, INT8",
        ),
    ],
)
def test_what_cannot_be_planned(smollm2: Path, options, error: type[Exception], says: str) -> None:
    settings = ServeSettings(**{"model": "x", "memory_bytes": 1300 << 20, **options})
    with pytest.raises(error, match=says):
        plan_for(settings, smollm2)


@pytest.mark.parametrize("most", [1, 7])
def test_a_batch_may_be_limited(smollm2: Path, most: int) -> None:
    settings = ServeSettings(model="x", memory_bytes=1300 << 20, max_context_tokens=512, max_batch=most)
    assert plan_for(settings, smollm2).batch_limit == most


@pytest.mark.parametrize(
    ("options", "precision"), [({"precision": "K8V4"}, "K8V4"), ({"dtype": "float32"}, "BF16"), ({}, "BF16")]
)
def test_a_precision_may_be_asked_for(smollm2: Path, options, precision: str) -> None:
    """Auto takes the most exact one where a batch of short sequences fits whatever is taken."""
    settings = ServeSettings(model="x", memory_bytes=8 << 30, max_context_tokens=512, **options)
    assert plan_for(settings, smollm2).kv.precision == precision


@pytest.mark.parametrize(("asked", "planned"), [("INT8", "INT8"), ("BF16", "BF16"), (None, "BF16")])
def test_a_precision_of_weights_may_be_asked_for(smollm2: Path, asked: str | None, planned: str) -> None:
    settings = ServeSettings(model="x", memory_bytes=1 << 30, max_context_tokens=512, weights=asked)
    assert plan_for(settings, smollm2).weight_precision == planned


def test_heads_may_be_pooled(smollm2: Path) -> None:
    settings = ServeSettings(model="x", memory_bytes=1 << 30, max_context_tokens=512, kv_heads=1)
    assert plan_for(settings, smollm2).attention == AttentionPlan(query_heads=9, kv_heads=1, native_kv_heads=3)
    with pytest.raises(UnsupportedPolicy, match="9 query heads over 3 KV heads; write one of 1, 3"):
        plan_for(dataclasses.replace(settings, kv_heads=2), smollm2)


def test_a_gpu_needs_its_memory_said() -> None:
    with pytest.raises(UnknownDevice, match="--memory 80Gi"):
        plan_for(ServeSettings(model="x", device="cuda"), Path("x"))
