import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from kvtide_sizing.errors import InvalidModel
from kvtide_sizing.models.safetensors_header import StoredWeights, read_folder, total_size


def shard(folder: Path, name: str, dtype: type, *shapes: tuple[int, ...]) -> None:
    save_file({f"{name}.{index}": np.zeros(shape, dtype) for index, shape in enumerate(shapes)}, folder / name)


def index_of(folder: Path, *names: str) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {name: name for name in names}}))


def test_one_file_is_counted(tmp_path: Path) -> None:
    shard(tmp_path, "model.safetensors", np.float16, (3, 5), (7,))
    assert read_folder(tmp_path) == StoredWeights(elements=22, dtype="F16", stored_bytes=44)


def test_the_index_says_which_files_belong(tmp_path: Path) -> None:
    shard(tmp_path, "a.safetensors", np.float32, (10, 10))
    shard(tmp_path, "b.safetensors", np.float16, (5,))
    shard(tmp_path, "model.safetensors", np.float16, (999,))
    index_of(tmp_path, "a.safetensors", "b.safetensors")
    assert read_folder(tmp_path) == StoredWeights(elements=105, dtype="F32", stored_bytes=4 * 100 + 2 * 5)


def test_a_folder_without_them_has_none(tmp_path: Path) -> None:
    assert read_folder(tmp_path) is None


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    index_of(tmp_path, "a.safetensors")
    with pytest.raises(InvalidModel, match=r"lacks a\.safetensors"):
        read_folder(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": 3}'])
def test_an_index_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(InvalidModel, match="index"):
        read_folder(tmp_path)


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        ({"metadata": {"total_size": 16060522496}, "weight_map": {}}, 16_060_522_496),
        ({"metadata": {"total_size": "much"}}, None),
        ({"metadata": None}, None),
        ({}, None),
    ],
)
def test_an_index_says_how_much_its_shards_hold(index: dict[str, object], expected: int | None) -> None:
    assert total_size(index) == expected


@pytest.mark.parametrize("kept", [0, 4, 12, 60, 400])
def test_a_file_cut_short_is_refused(tmp_path: Path, kept: int) -> None:
    shard(tmp_path, "model.safetensors", np.float32, (10, 10))
    file = tmp_path / "model.safetensors"
    assert file.stat().st_size > 400
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(InvalidModel, match=r"cut short|no header"):
        read_folder(tmp_path)


def test_a_header_without_a_type_is_refused(tmp_path: Path) -> None:
    header = json.dumps({"all": {"shape": [1], "data_offsets": [0, 4]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises(InvalidModel, match="no header of safetensors: 'dtype'"):
        read_folder(tmp_path)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes((20).to_bytes(8, "little") + b"x" * 100)
    with pytest.raises(InvalidModel, match="no header"):
        read_folder(tmp_path)
