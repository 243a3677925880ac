import json
from pathlib import Path

import pytest

from kvtide_sizing.errors import InvalidModel, ModelNotFound
from kvtide_sizing.models.inspect import inspect_model, resolve_model
from tests.sizing.models.test_config_json import SMOLLM2


def test_files_and_folders_are_named_after_themselves(smollm2_file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(SMOLLM2))
    assert inspect_model(smollm2_file).name == "SmolLM2-135M-Instruct.Q4_1"
    assert inspect_model(str(folder)).name == "my-model"
    assert inspect_model(folder).layers == inspect_model(smollm2_file).layers


def test_what_is_not_there_is_answered_with_what_is(tmp_path: Path) -> None:
    (tmp_path / "real.gguf").touch()
    with pytest.raises(ModelNotFound, match=r"no such file or folder; .* has real\.gguf"):
        inspect_model(tmp_path / "wrong" / "name.gguf")
    with pytest.raises(ModelNotFound, match=r"no config\.json, but real\.gguf"):
        inspect_model(tmp_path)


def test_a_file_of_another_kind_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"data")
    with pytest.raises(ModelNotFound, match=r"neither a folder with config\.json nor a \.gguf file"):
        inspect_model(tmp_path / "model.bin")


def test_an_empty_gguf_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "empty.gguf").touch()
    with pytest.raises(InvalidModel, match="it has 0 bytes"):
        inspect_model(tmp_path / "empty.gguf")


@pytest.mark.parametrize("name", ["smollm2-135m", "SmolLM2-135M"])
def test_a_built_in_name_needs_no_file(name: str) -> None:
    assert resolve_model(name).parameters == 134_515_008


def test_a_name_that_is_nowhere_is_answered_with_the_built_in_ones() -> None:
    with pytest.raises(ModelNotFound, match=r"'gpt-9' is neither a file or folder here.*llama-2-7b"):
        resolve_model("gpt-9")
