"""Where model URIs lead."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvtide_sizing.errors import ModelDownloadFailed, ModelNotFound
from kvtide_sizing.models.model_uri import ModelUri
from kvtide_worker.models.source import CACHE_VARIABLE, fetch


def test_a_file_is_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    assert fetch(ModelUri.parse(f"file://{tmp_path}/model.gguf")) == tmp_path / "model.gguf"


@pytest.mark.parametrize("uri", ["file:///no/such/model.gguf", "pvc://claim/no-such-model"])
def test_nothing_there_is_said(uri: str) -> None:
    with pytest.raises(ModelNotFound, match=f"{uri}: there is nothing at /"):
        fetch(ModelUri.parse(uri))


def test_a_hub_that_cannot_be_reached_is_a_failed_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ModelDownloadFailed, match="hf://some/model: the download failed"):
        fetch(ModelUri.parse("hf://some/model"))


def test_a_downloaded_model_needs_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's cache layout, as a download would have left it in $KVTIDE_MODEL_CACHE."""
    repo, commit = tmp_path / "models--some--model", "0" * 40
    (repo / "snapshots" / commit).mkdir(parents=True)
    (repo / "snapshots" / commit / "config.json").write_text("{}")
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(commit)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert fetch(ModelUri.parse("hf://some/model")) == repo / "snapshots" / commit
