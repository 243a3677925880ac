"""`kvtide` as a person runs it: a process, its output and its exit status."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from kvtide_sizing.models import catalog
from kvtide_sizing.shape import ModelShape

SEED = ["plan", "--model", "llama-2-7b", "--device", "a100-80gb", "--context", "4096"]


def kvtide(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command with only its own environment: no token, no cache of the user's."""
    program = "from kvtide_sizing.cli.main import main; main(prog_name='kvtide')"
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **environment},
    )


def test_the_seed_case_in_json() -> None:
    result = kvtide(*SEED, "-o", "json")
    assert result.returncode == 0, result.stderr
    data = json.loads(result.stdout)
    assert data["kv"]["bytesPerToken"] == 524_288
    assert data["maxContextTokens"] * data["kv"]["bytesPerToken"] == 2_147_483_648
    memory = data["memory"]
    assert sum(memory.values()) == 2 * memory["deviceBytes"] == 2 * 80 * 1024**3


def test_yaml_says_the_same_as_json() -> None:
    assert yaml.safe_load(kvtide(*SEED, "-o", "yaml").stdout) == json.loads(kvtide(*SEED, "-o", "json").stdout)


def test_the_table_names_every_part_of_the_memory() -> None:
    table = kvtide(*SEED).stdout
    for part in ("weights", "KV pool", "activations", "overhead", "reserve", "524,288 bytes", "█"):
        assert part in table
    bar = next(line for line in table.splitlines() if line and set(line) == {"█"})
    assert len(bar) == 60


def test_compare_puts_the_ladder_side_by_side() -> None:
    wish = ["plan", "--model", "llama-2-13b", "--device", "a100-40gb", "--context", "4096", "--compare"]
    # 2731 tokens are two thirds of 4096.
    wish += ["--profile", "Custom", "--mean-prompt", "2048", "--mean-output", "683"]
    rungs = json.loads(kvtide(*wish, "-o", "json").stdout)["comparison"]
    contiguous, paged, heads, int8 = rungs[:4]
    assert [rung["name"] for rung in rungs[2:]] == ["+ 8 KV heads of 40", "+ INT8", "+ K8V4", "+ INT4"]
    assert contiguous["bytesPerSequence"] == 4096 * 819_200
    assert paged["bytesPerSequence"] == 2816 * 819_200  # in 11 blocks of 256
    assert paged["sequences"] >= 1.5 * contiguous["sequences"]
    assert heads["bytesPerToken"] == 819_200 // 5
    # 40 layers · 8 heads · 2 · (128 + 2) bytes: 90 % less than 819,200
    assert int8["bytesPerToken"] == 83_200
    assert 1 - int8["bytesPerToken"] / contiguous["bytesPerToken"] > 0.73
    assert int8["sequences"] > 32
    assert "contiguous BF16" in kvtide(*wish).stdout


def test_explain_prints_the_formula_with_its_numbers() -> None:
    lines = json.loads(kvtide(*SEED, "--explain", "-o", "json").stdout)["explanation"]
    assert lines[0] == "32 layers: 32 · 32 KV heads · (128 · 2 + 128 · 2) = 524,288 bytes a token"
    table = kvtide(*SEED, "--explain").stdout
    assert "32 KV heads · (128 · 2 + 128 · 2) = 524,288" in " ".join(table.split())


def test_explain_says_what_recent_tokens_and_key_bases_take() -> None:
    asked = ["plan", "--model", "smollm2-135m", "--device", "cpu:1280Mi", "--context", "2048", "--precision", "INT4"]
    lines = "\n".join(json.loads(kvtide(*asked, "--explain", "-o", "json").stdout)["explanation"])
    # a block: 64 tokens of 30 layers, 3 heads, 2 · (32 + 4) bytes
    assert "its last 32 in BF16 too, 64 ÷ 4 = 16 of them in a block: 2 blocks, 829,440 bytes a sequence" in lines
    assert 829_440 == 2 * 64 * 30 * 3 * 72
    # two matrices of 64² float32 and a centre of 64, of each layer's heads
    assert "30 layers · 3 KV heads · (8 · 64² + 4 · 64) = 2,972,160, counted with the weights" in lines
    assert 2_972_160 == 30 * 3 * (2 * 64 * 64 + 64) * 4
    assert "− 272,002,176 weights and key bases −" in lines
    assert 272_002_176 == 2 * 134_515_008 + 2_972_160
    whole = json.loads(kvtide(*asked[:-1], "BF16", "--explain", "-o", "json").stdout)["explanation"]
    assert not [line for line in whole if "recent" in line or "bases" in line]


def test_mixed_is_chosen_by_a_sensitivity_that_is_given(tmp_path: Path) -> None:
    layer = {"key": {"INT8": 0.001, "INT4": 0.01}, "value": {"INT8": 0.0001, "INT4": 0.001}}
    keys = {"key": {"INT8": 0.1, "INT4": 1.0}, "value": {"INT8": 0.0001, "INT4": 0.001}}
    file = tmp_path / "smollm2.json"
    file.write_text(json.dumps({"model": "smollm2-135m", "text": "", "tokens": 1, "layers": [layer] * 29 + [keys]}))
    asked = ["plan", "--model", "smollm2-135m", "--device", "cpu:2GiB", "--precision", "Mixed", "-o", "json"]
    data = json.loads(kvtide(*asked, "--sensitivity", str(file)).stdout)
    assert data["kv"]["layers"][-1] == {"layers": "29", "key": "BF16", "value": "INT4"}
    assert "measured" in data["reasons"][0]
    file.write_text("{")
    refused = kvtide(*asked, "--sensitivity", str(file))
    assert refused.returncode == 1
    assert "smollm2.json cannot be read as JSON" in refused.stderr


def test_nothing_that_plans_or_helps_imports_torch() -> None:
    """`kvtide quality` and `kvtide serve` need it: they are listed, and loaded when they are called."""
    program = (
        "import sys; from kvtide_sizing.cli.main import main; main(sys.argv[1:], prog_name='kvtide', "
        "standalone_mode=False); print('torch' in sys.modules, 'kvtide_worker' in sys.modules)"
    )
    for arguments in (["--help"], [*SEED, "--explain"], ["models"]):
        done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
        assert done.stdout.endswith("False False\n"), done.stdout
    listed = kvtide("--help").stdout
    assert "quality" in listed
    assert "Measure what each KV format costs in perplexity" in listed


def test_a_refusal_is_data_too() -> None:
    result = kvtide("plan", "--model", "llama-2-70b", "--device", "a100-80gb", "--context", "4096", "-o", "json")
    error = json.loads(result.stdout)["error"]
    assert result.returncode == 2
    assert error["reason"] == "DoesNotFit"
    assert error["neededBytes"] > error["deviceBytes"] == 80 * 1024**3
    assert error["message"] in result.stderr
    assert all(change in error["message"] for change in error["changes"])


def test_a_measured_overhead_can_be_given() -> None:
    data = json.loads(kvtide(*SEED, "--overhead", "700Mi", "-o", "json").stdout)
    assert data["memory"]["overheadBytes"] == 700 * 1024**2
    assert data["overheadMeasured"] is True


@pytest.mark.parametrize("spelled", ["int8", "INT8", "Int8"])
def test_names_may_be_spelled_in_any_case(spelled: str) -> None:
    data = json.loads(kvtide(*SEED, "--precision", spelled, "--profile", "chat", "-o", "json").stdout)
    assert data["kv"]["precision"] == "INT8"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("models", ["gemma-3-270m", "MQA, 15 layers see 512", "deepseek-v3", "MLA", "18,432", "planned only"]),
        ("devices", ["a100-40gb", "40.0 GiB", "1,555 GB/s", "312 TFLOP/s", "mygpu:48GiB"]),
    ],
)
def test_what_is_built_in_can_be_listed(command: str, words: list[str]) -> None:
    listed = kvtide(command).stdout
    for word in words:
        assert word in listed


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (
            # 68,976,648,192 parameters of 2 bytes, and 80 · 8 key bases of 131,584
            ["--model", "llama-2-70b", "--device", "a100-80gb", "--context", "4096"],
            2,
            ["weights 128.6 GiB", "device.count 2"],
        ),
        (["--model", "llama-2-7b", "--device", "a100-80gb", "--context", "8192"], 1, ["8192", "write 4096 or less"]),
        (["--model", "llama-9", "--device", "h200"], 1, ["'llama-9'", "llama-2-7b"]),
        (["--model", "llama-2-7b", "--device", "b9000"], 1, ["'b9000'", "h100-80gb"]),
        (["--model", "llama-2-7b", "--device", "a100-40gb", "--precision", "FP8"], 1, ["FP8", "write INT8"]),
        (["--model", "llama-2-7b", "--device", "h200", "--kv-heads", "7"], 1, ["kvHeads 7", "write one of 1, 2, 4"]),
        (["--model", "smollm2-135m", "--device", "h200", "--count", "2"], 1, ["9 query heads", "1, 3, 9"]),
        (["--model", "llama-2-7b", "--device", "h200", "--profile", "Custom"], 1, ["meanPromptTokens"]),
        (["--model", "llama-2-7b", "--device", "h200", "--block-size", "48"], 1, ["16, 32, 64, 128, 256"]),
        (["--model", "llama-2-7b", "--device", "h200", "--frobnicate"], 64, ["--frobnicate"]),
    ],
)
def test_a_refusal_says_why_and_what_works(arguments: list[str], status: int, words: list[str]) -> None:
    result = kvtide("plan", *arguments)
    assert result.returncode == status
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    for word in words:
        assert word in result.stderr


def test_every_option_reaches_the_plan(smollm2_file: Path) -> None:
    options = "--context 1024 --concurrency 200 --precision BF16 --block-size 32 --kv-heads 3 --profile Documents"
    data = json.loads(
        kvtide("plan", "--model", str(smollm2_file), "--device", "cpu:2Gi", *options.split(), "-o", "json").stdout
    )
    assert data["model"] == "SmolLM2-135M-Instruct.Q4_1"
    assert data["kv"]["blockSizeTokens"] == 32
    assert data["maxContextTokens"] == 1024
    # Documents are expected longer than the context that was asked for.
    assert any("4608" in warning for warning in data["warnings"])
    assert any("targetConcurrency 200" in warning for warning in data["warnings"])


def test_inspect_prints_the_shape_and_writes_it_for_the_operator(smollm2_file: Path, tmp_path: Path) -> None:
    message = tmp_path / "termination-log"
    result = kvtide("inspect", "--model", f"file://{smollm2_file}", "--output", str(message))
    assert result.returncode == 0, result.stderr
    written = message.read_bytes()
    assert len(written) <= 4096
    assert json.loads(written) == json.loads(result.stdout)
    assert ModelShape.from_json(json.loads(written)).parameters == 134_515_008


@pytest.mark.parametrize(
    ("uri", "reason", "words"),
    [
        ("file:///nowhere/model.gguf", "ModelNotFound", "/nowhere/model.gguf"),
        ("pvc://claim/model", "ModelNotFound", "/models/pvc/claim/model"),
        ("s3://bucket/model", "InvalidModelUri", "hf://ORG/NAME"),
    ],
)
def test_a_failed_inspection_leaves_its_reason_for_the_operator(
    tmp_path: Path, uri: str, reason: str, words: str
) -> None:
    message = tmp_path / "termination-log"
    result = kvtide("inspect", "--model", uri, "--output", str(message))
    assert result.returncode == 3
    error = json.loads(message.read_bytes())["error"]
    assert error["reason"] == reason
    assert words in error["message"]
    assert error["message"] in result.stderr


def test_a_long_error_fits_a_termination_message(tmp_path: Path) -> None:
    for index in range(10):
        (tmp_path / f"{index}{'é' * 120}").touch()
    message = tmp_path / "termination-log"
    result = kvtide("inspect", "--model", f"file://{tmp_path}/nothing", "--output", str(message))
    assert result.returncode == 3
    assert len(message.read_bytes()) <= 4096
    assert json.loads(message.read_bytes())["error"]["reason"] == "ModelNotFound"


def test_a_known_repository_needs_no_network() -> None:
    result = kvtide("inspect", "--model", "hf://HuggingFaceTB/SmolLM2-135M-Instruct", HF_HUB_OFFLINE="1")
    assert json.loads(result.stdout) == catalog.builtin("smollm2-135m").to_json()


def test_help_lists_every_part_and_loads_none() -> None:
    program = (
        "import sys; from kvtide_sizing.cli.main import main; main(['--help'], standalone_mode=False);"
        "print(sorted(m for m in sys.modules if m.split('.')[0] in "
        "('torch', 'kopf', 'fastapi', 'rich', 'kvtide_worker', 'kvtide_operator')), file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stderr.strip() == "[]"
    for name in ("plan", "models", "devices", "inspect", "serve", "operator"):
        assert f"\n  {name} " in result.stdout


@pytest.mark.parametrize(("command", "extra"), [("operator", "operator"), ("serve", "worker")])
def test_a_part_that_is_not_installed_says_how_to_install_it(command: str, extra: str) -> None:
    # None in sys.modules makes an import fail as a package does that is not there.
    program = (
        "import sys; sys.modules['kvtide_worker.command'] = sys.modules['kvtide_operator.command'] = None;"
        f"from kvtide_sizing.cli.main import main; main(['{command}'])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert f"pip install 'kvtide[{extra}]'" in result.stderr
    assert "Traceback" not in result.stderr


def test_importing_the_planner_takes_less_than_150_milliseconds() -> None:
    program = (
        "import time; start = time.process_time(); import kvtide_sizing.plan, kvtide_sizing.models.catalog;"
        "print(time.process_time() - start)"
    )
    runs = [
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True) for _ in range(3)
    ]
    assert min(float(run.stdout) for run in runs) < 0.150
