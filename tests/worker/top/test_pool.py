"""`kvtide top --admin-url`: an answer that is no map is said in a sentence, and drawn by nobody."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from kvtide_worker.top.command import Unreachable, _pool


@pytest.fixture
def answering() -> Iterator[HTTPServer]:
    """A server that answers everything with its `said`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(self.server.said)  # type: ignore[attr-defined]

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("said", [b"<html>", b"[]", b'{"blocks": "#."}', b"null"])
def test_what_is_no_map_is_said(answering: HTTPServer, said: bytes) -> None:
    answering.said = said  # type: ignore[attr-defined]
    with pytest.raises(Unreachable, match="is this the admin port"):
        _pool(f"http://127.0.0.1:{answering.server_port}/debug/kv", "t")


def test_a_map_is_given_as_it_is(answering: HTTPServer) -> None:
    answering.said = b'{"blocks": "#.", "sequences": []}'  # type: ignore[attr-defined]
    found = _pool(f"http://127.0.0.1:{answering.server_port}/debug/kv", "t")
    assert found == {"blocks": "#.", "sequences": []}
