"""`kvtide top` on a real worker, as a person without a terminal runs it."""

import subprocess
from pathlib import Path

import httpx2

from tests.worker.server.harness import KVTIDE, MODEL_NAME, Server


def top(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([KVTIDE, "top", *options], check=False, capture_output=True, text=True, timeout=60)


def test_one_screen_has_the_bars_the_requests_and_the_rates(server: Server, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(server.admin.headers["Authorization"].removeprefix("Bearer "))
    admin = str(server.admin.base_url)
    body = {"prompt": [900] * 20, "max_tokens": 1500, "ignore_eos": True, "stream": True}
    with httpx2.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as stream:
        lines = stream.iter_lines()
        assert '"text"' in next(lines)
        drawn = top(server.url, "--once", "--admin-url", admin, "--admin-token-file", str(token))
    assert (drawn.returncode, drawn.stderr) == (0, "")
    state = server.state()
    assert f"{MODEL_NAME} on {server.url}" in drawn.stdout
    assert f"{state['kv']['capacityTokens']:,} tokens of KV in blocks of 16; layers 0-29: FLOAT32" in drawn.stdout
    assert f"1 of {state['limits']['batchLimit']}" in drawn.stdout
    rate = next(line for line in drawn.stdout.splitlines() if "output tokens/s" in line).split()[-2]
    assert float(rate) > 1
    assert any("running" in line and " 20 " in line for line in drawn.stdout.splitlines() if "r" in line)


def test_what_is_wrong_is_said_in_one_line(server: Server, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("another")
    nobody = top("http://127.0.0.1:9", "--once")
    assert (nobody.returncode, nobody.stderr.count("\n")) == (1, 1)
    assert "does not answer" in nobody.stderr
    other = top(server.url, "--once", "--admin-url", str(server.admin.base_url), "--admin-token-file", str(token))
    assert "answered 401: the token is another one" in other.stderr
    assert "is no address: write http://HOST:PORT" in top("localhost:8000").stderr
    assert "go together" in top(server.url, "--admin-url", "http://127.0.0.1:8001").stderr
