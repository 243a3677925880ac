"""`kvtide quality` as a person runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kvtide_worker.quality.command import quality_command
from tests.worker.quality.tiny_measured import save_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_model(folder)
    return folder


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text("Water finds its own level. " * 20)
    return file


def run(*arguments: object) -> Result:
    return CliRunner().invoke(quality_command, [str(argument) for argument in arguments])


def test_help_needs_no_torch() -> None:
    code = "import sys, kvtide_worker.quality.command; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_help_says_what_the_exit_status_means() -> None:
    assert "Exit status: 0 where every format is within its bound (INT8 0.3" in run("--help").output


def test_json_has_the_rows_and_the_status_is_theirs(model: Path, text: Path) -> None:
    result = run(model, "--text", text, "--precision", "INT8,INT4", "--answer-tokens", 6, "--window", 256, "-o", "json")
    report = json.loads(result.stdout)
    assert [each["format"] for each in report["formats"]] == ["BF16", "INT8", "INT4"]
    assert report["texts"] == [str(text)]
    # 540 bytes, each a token: windows of 256, 256 and 28, of which 64 are prefilled and one is read before the first.
    assert report["tokens"] == 2 * (256 - 65)
    _, int8, int4 = report["formats"]
    assert int8["klDivergence"] < int4["klDivergence"]
    assert int4["boundPercent"] == 3
    assert int4["passed"] is (int4["worsePercent"] <= 3)
    # Six conversations of three turns, of which the random model may end one early.
    assert int4["greedy"]["answers"] == 18
    assert result.exit_code == (0 if report["passed"] else 1)


def test_weights_of_eight_bits_have_a_row_and_a_bound_of_their_own(model: Path, text: Path) -> None:
    result = run(
        *(model, "--text", text, "--weights", "int8", "--precision", "K8V4", "--answer-tokens", 4),
        *("--tokens", 40, "-o", "json"),
    )
    report = json.loads(result.stdout)
    assert report["weights"] == "INT8"
    bounds = {each["format"]: each["boundPercent"] for each in report["formats"]}
    assert bounds == {"BF16": None, "weights INT8": 1, "K8V4, weights INT8": 2}
    exact, alone, both = report["formats"]
    assert exact["klDivergence"] == 0 < alone["klDivergence"]
    assert alone["perplexity"] != exact["perplexity"]
    assert both["beside"]["format"] == "weights INT8"
    assert both["greedy"]["answers"] == 18


def test_the_table_marks_what_missed_its_bound(model: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = (model, "--text", text, "--precision", "INT4", "--answer-tokens", 0, "--tokens", 40)
    for bound, mark, status in ((1e9, "✓", 0), (-1e9, "✗", 1)):
        monkeypatch.setattr("kvtide_worker.quality.formats.LOSS_BOUND_PERCENT", {"INT4": bound})
        result = run(*arguments)
        assert mark in result.stdout
        assert result.exit_code == status


def test_sensitivity_is_written_and_mixed_is_chosen_by_it(model: Path, text: Path, tmp_path: Path) -> None:
    file = tmp_path / "sensitivity.json"
    assert run(model, "--text", text, "--sensitivity", file).exit_code == 0
    written = json.loads(file.read_text())
    assert (written["tokens"], len(written["layers"])) == (32 * 16, 2)
    result = run(
        *(model, "--text", text, "--precision", "K8V4,Mixed,INT4", "--mixed-by", file),
        *("--answer-tokens", 0, "--tokens", 60, "-o", "json"),
    )
    beside = {each["format"]: each.get("beside", {}).get("format") for each in json.loads(result.stdout)["formats"]}
    assert beside == {"BF16": None, "K8V4": None, "Mixed": "K8V4", "Mixed, 5 bits": "INT4", "INT4": None}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("none", "is no JSON as `kvtide quality --sensitivity` writes it"),
        ("[]", "not a sensitivity as `kvtide quality"),
    ],
)
def test_another_file_than_a_sensitivity_is_refused(model: Path, tmp_path: Path, content: str, says: str) -> None:
    file = tmp_path / "sensitivity.json"
    file.write_text(content)
    result = run(model, "--mixed-by", file)
    assert result.exit_code == 3
    assert says in result.stderr


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--precision", "INT9"], "'INT9' is no KV precision; write BF16, "),
        (["--precision", "FP8"], "FP8 has no kernels here; measured are BF16, INT8, K8V4, Mixed, INT4"),
    ],
)
def test_unknown_precisions_are_refused_with_what_there_is(model: Path, options: list[str], says: str) -> None:
    result = run(model, *options)
    assert result.exit_code == 3
    assert says in result.stderr


def test_a_short_text_is_refused_with_what_is_needed(model: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.txt"
    short.write_text("Too short.")
    result = run(model, "--text", short)
    assert result.exit_code == 3
    assert "the text has 10 tokens" in result.stderr


def test_a_text_that_is_none_is_refused(model: Path, tmp_path: Path) -> None:
    latin = tmp_path / "latin.txt"
    latin.write_bytes("Müll".encode("latin-1"))
    result = run(model, "--text", latin)
    assert result.exit_code == 3
    assert "a text is no UTF-8" in result.stderr


def test_a_missing_text_is_a_matter_of_usage(model: Path, tmp_path: Path) -> None:
    result = run(model, "--text", tmp_path / "nothing.txt")
    assert result.exit_code not in (0, 1, 3)
    assert "nothing.txt' does not exist" in result.stderr


def test_a_missing_model_is_refused_with_what_a_model_is() -> None:
    result = run("nowhere/at/all")
    assert result.exit_code == 3
    assert "neither a file or folder here, nor hf://ORG/NAME" in result.stderr


def test_a_head_size_without_kernels_is_refused(tmp_path: Path) -> None:
    from tests.worker.models.tiny import save_tiny_llama

    save_model(tmp_path)
    save_tiny_llama(tmp_path)  # heads of 16
    result = run(tmp_path, "--precision", "INT8")
    assert result.exit_code == 3
    assert "heads of 16" in result.stderr
