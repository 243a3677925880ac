"""How a server starts, and how it says that it cannot."""

import signal
import socket
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from click.testing import CliRunner

from kvtide_worker.command import serve_command
from kvtide_worker.server import worker
from kvtide_worker.server.settings import ServeSettings
from tests.worker.server.conftest import EXACT
from tests.worker.server.harness import Server, eventually


@pytest.mark.parametrize(
    ("options", "status", "says"),
    [
        (["--model", "file:///no/such/model.gguf"], 3, "there is nothing at /no/such/model.gguf"),
        (["--memory", "200Mi"], 2, "needs"),
        (["--plan", __file__], 3, "is not JSON"),
    ],
)
def test_a_start_that_fails_is_one_line(
    smollm2: Path, tmp_path: Path, options: list[str], status: int, says: str
) -> None:
    with Server(*options, model=smollm2, log=tmp_path / "log") as server:
        assert server.exit_status(within_s=30) == status
        assert "Traceback" not in server.output
        last = server.output.splitlines()[-1]
        assert last.startswith("kvtide serve: ")
        assert says in last
        assert server.termination_log.read_text().strip() == last.removeprefix("kvtide serve: ")


def test_a_port_in_use_is_named(smollm2: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with Server("--port", str(port), model=smollm2, log=tmp_path / "log") as server:
            assert server.exit_status(within_s=30) == 3
            assert f"cannot listen on 127.0.0.1:{port}" in server.output


def test_while_it_loads_it_is_alive_and_not_ready(smollm2: Path, tmp_path: Path) -> None:
    options = ("--memory", "1300Mi", "--max-context", "512", *EXACT)
    with Server(*options, model=smollm2, log=tmp_path / "log") as server:
        assert server.get("/health").status_code == 200
        assert server.get("/ready").status_code == 503
        early = server.post("/v1/completions", {"prompt": "Hi"})
        assert early.status_code == 503
        assert int(early.headers["retry-after"]) > 0
        assert "serving" not in server.output  # else it was not early
        eventually(lambda: "starting torch" in server.output, 30)
        server.terminate()
        assert server.exit_status(within_s=5) == 0
        assert "Traceback" not in server.output


@pytest.mark.parametrize(("options", "eager"), [([], False), (["--enforce-eager"], True)])
def test_eager_steps_are_told_to_the_engine(
    options: list[str], eager: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[ServeSettings] = []
    monkeypatch.setattr(worker, "serve", lambda settings: told.append(settings) or 0)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    result = CliRunner().invoke(serve_command, ["--model", "x", "--device", "cuda", *options])
    assert result.exit_code == 0, result.output
    config = worker.engine_config(told[0], tmp_path, Mock())
    assert (config.device, config.enforce_eager) == ("cuda", eager)


def test_the_server_process_never_loads_torch() -> None:
    """The API's process stays small and quick to start; torch is the engine process's."""
    code = "import sys, kvtide_worker.server.worker; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
