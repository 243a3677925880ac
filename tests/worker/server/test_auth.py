"""Bearer tokens from files, at the door of an app."""

from pathlib import Path

import pytest
from fastapi import Depends, FastAPI
from fastapi.testclient import TestClient

from kvtide_worker.server import errors
from kvtide_worker.server.app import api_app
from kvtide_worker.server.auth import API_KEY_VARIABLE, BearerToken, client_key, read_token
from kvtide_worker.server.failures import CannotStart
from kvtide_worker.server.lifecycle import Lifecycle
from kvtide_worker.server.service import Service


def test_a_token_is_read_without_the_line_end(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    assert read_token(tmp_path / "token") == "secret"


def test_an_empty_token_is_none(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("\n")
    with pytest.raises(CannotStart, match="is empty"):
        read_token(tmp_path / "token")


def test_a_clients_key_is_the_files_or_else_the_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text("of the file\n")
    monkeypatch.delenv(API_KEY_VARIABLE, raising=False)
    assert client_key(None) is None
    monkeypatch.setenv(API_KEY_VARIABLE, " of the environment ")
    assert client_key(None) == "of the environment"
    assert client_key(tmp_path / "key") == "of the file"


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("Bearer secret", 200),
        ("Bearer secre", 401),
        ("Bearer secret2", 401),
        ("bearer", 401),
        ("secret", 401),
        ("Bearer s\u00e9cret", 401),
        (None, 401),
    ],
)
def test_who_may_pass(header: str | None, status: int) -> None:
    app = FastAPI(dependencies=[Depends(BearerToken("secret"))])
    errors.install(app)
    app.get("/")(lambda: "inside")
    headers = {} if header is None else {"Authorization": header.encode()}
    answer = TestClient(app).get("/", headers=headers)
    assert answer.status_code == status
    assert status == 200 or answer.json()["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize(
    ("path", "key", "status"),
    [
        ("/v1/models", None, 401),
        ("/tokenize", "wrong", 401),
        ("/v1/models", "secret", 503),  # let in, but nothing is loaded
        ("/health", None, 200),
        ("/metrics", None, 200),
        ("/version", None, 200),
    ],
)
def test_a_key_guards_the_api_but_not_probes_and_scrapes(path: str, key: str | None, status: int) -> None:
    service = Service(Lifecycle(lame_duck_s=5, drain_s=120), engine_timeout_s=60, started_at=0)
    client = TestClient(api_app(service, BearerToken("secret")))
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    method = "POST" if path == "/tokenize" else "GET"
    assert client.request(method, path, headers=headers, json={"prompt": "x"}).status_code == status
