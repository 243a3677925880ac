"""The API against its own description: what it allows, and what it does not, as Schemathesis makes it up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from tests.worker.server.conftest import serve_tiny
from tests.worker.server.harness import Server, eventually

pytestmark = pytest.mark.slow


def only_its_own_deadline_fails(
    context: schemathesis.CheckContext, response: schemathesis.Response, case: schemathesis.Case
) -> None:
    """No answer is a server's error, but where the request itself gave less time than it took."""
    if response.status_code == 504 and isinstance(case.body, dict) and case.body.get("timeout") is not None:
        assert response.json()["error"]["code"] == "deadline_exceeded"
        return
    not_a_server_error(context, response, case)


CHECKS = [
    only_its_own_deadline_fails,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
PATHS = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{name}"),
    ("GET", "/version"),
    ("GET", "/health"),
    ("GET", "/ready"),
    ("GET", "/metrics"),
]
PLAIN = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4},
    "/v1/completions": {"prompt": "Hello", "max_tokens": 4},
    "/tokenize": {"prompt": "Hello"},
    "/detokenize": {"tokens": [900]},
}


@pytest.fixture(scope="module")
def small_server(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With a context so small that what is generated without a limit ends soon."""
    with serve_tiny(smollm2, tmp_path_factory.mktemp("described"), max_context=128) as started:
        yield started.ready()


@pytest.fixture(scope="module")
def described(small_server: Server) -> schemathesis.BaseSchema:
    return schemathesis.openapi.from_url(f"{small_server.url}/openapi.json")


def test_every_endpoint_is_described(described: schemathesis.BaseSchema) -> None:
    found = {(operation.ok().method.upper(), operation.ok().path) for operation in described.get_all_operations()}
    assert found == set(PATHS)


# Where there is no body, there is nothing that could be wrong.
@pytest.mark.parametrize(
    ("method", "path", "mode"),
    [(*path, GenerationMode.POSITIVE) for path in PATHS]
    + [(*path, GenerationMode.NEGATIVE) for path in PATHS if path[0] == "POST"],
)
def test_every_answer_is_as_described(
    described: schemathesis.BaseSchema, method: str, path: str, mode: GenerationMode
) -> None:
    operation = described[path][method]
    assert bool(operation.body) == (method == "POST")

    @settings(
        max_examples=60,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
        derandomize=True,
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: schemathesis.Case) -> None:
        if mode is GenerationMode.POSITIVE and isinstance(case.body, dict):
            case.body.pop("model", None)  # made up, it would always be another one, and nothing else were looked at
        seen.add(case.call_and_validate(timeout=120, checks=CHECKS).status_code)

    seen: set[int] = set()
    if path in PLAIN:
        # What is made up may be refused for good reasons, all of it: a plain request is not.
        plain = operation.Case(body=PLAIN[path], media_type="application/json")
        assert plain.call_and_validate(checks=CHECKS).status_code == 200
    check()
    assert path in PLAIN or mode is GenerationMode.NEGATIVE or 200 in seen or "{name}" in path


def test_nothing_is_left_behind(small_server: Server) -> None:
    eventually(lambda: small_server.state()["requests"]["running"] == 0, 30)
    assert small_server.state()["kv"]["liveBlocks"] == 0
    assert small_server.get("/health").status_code == 200
