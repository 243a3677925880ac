"""What the hub answers, through its real client, from a server that speaks as the hub does."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.sizing.cli.test_commands import kvtide
from tests.sizing.models.test_config_json import SMOLLM2

COMMIT = "a" * 40
# The hub's words: status and X-Error-Code.
REFUSALS = {
    "/org/missing/": (404, "RepoNotFound"),
    "/org/no-config/": (404, "EntryNotFound"),
    "/org/gated/": (403, "GatedRepo"),
    "/org/private/": (401, "RepoNotFound"),
}


FILES = {
    "/org/model/resolve/main/config.json": SMOLLM2,
    "/org/model/resolve/v1/config.json": SMOLLM2,
    "/org/model/resolve/v1/model.safetensors.index.json": {"metadata": {"total_size": 269_060_552}, "weight_map": {}},
}


class Hub(BaseHTTPRequestHandler):
    """Serves org/model's config.json at main and at v1, with an index of shards at v1, and refuses the rest."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self.wfile.write(self._answer())

    def _answer(self) -> bytes:
        refusal = next((REFUSALS[prefix] for prefix in REFUSALS if self.path.startswith(prefix)), None)
        if self.path in FILES:
            body = json.dumps(FILES[self.path]).encode()
            self.send_response(200)
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("ETag", f'"{len(body)}"')  # the client keeps files by it
        else:
            status, code = refusal or (404, "RevisionNotFound")
            body = b""
            self.send_response(status)
            self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        return body

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: pytest's output is for results."""


@pytest.fixture(scope="module")
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(("uri", "stored_bytes"), [("hf://org/model", None), ("hf://org/model@v1", 269_060_552)])
def test_a_configuration_on_the_hub_gives_a_shape(hub: str, tmp_path: Path, uri: str, stored_bytes: int | None) -> None:
    result = kvtide("inspect", "--model", uri, HF_ENDPOINT=hub, HF_HOME=str(tmp_path))
    assert result.returncode == 0, result.stderr
    shape = json.loads(result.stdout)
    assert (shape["name"], shape["parameters"]) == ("org/model", 134_515_008)
    assert shape["storedBytes"] == stored_bytes


@pytest.mark.parametrize(
    ("uri", "reason", "words"),
    [
        ("hf://org/missing", "ModelNotFound", "check the repository's name"),
        ("hf://org/no-config", "ModelNotFound", "no config.json of hf://org/no-config"),
        ("hf://org/model@v9", "ModelNotFound", "the revision"),
        ("hf://org/gated", "ModelDownloadFailed", "status 403"),
        ("hf://org/private", "ModelDownloadFailed", "model.authSecretRef"),
    ],
)
def test_what_the_hub_refuses_becomes_a_reason(hub: str, tmp_path: Path, uri: str, reason: str, words: str) -> None:
    message = tmp_path / "termination-log"
    result = kvtide(
        "inspect", "--model", uri, "--output", str(message), HF_ENDPOINT=hub, HF_HOME=str(tmp_path / "cache")
    )
    assert result.returncode == 3, result.stderr
    error = json.loads(message.read_bytes())["error"]
    assert error["reason"] == reason
    assert words in error["message"]


def test_a_hub_that_cannot_be_reached_is_a_failed_download(tmp_path: Path) -> None:
    message = tmp_path / "termination-log"
    result = kvtide(
        "inspect", "--model", "hf://org/model", "--output", str(message), HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path)
    )
    assert result.returncode == 3
    error = json.loads(message.read_bytes())["error"]
    assert error["reason"] == "ModelDownloadFailed"
    assert "cannot be reached" in error["message"]
