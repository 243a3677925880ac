"""How a server ends: drained without a lost token, at the end of its time, or with its engine."""

import os
import signal
import time
from pathlib import Path

import httpx2
import openai
import pytest

from tests.worker.server.conftest import EXACT
from tests.worker.server.harness import MODEL_NAME, Background, Server, eventually

SMALL = ("--memory", "1300Mi", "--max-context", "1024", *EXACT)


def stream_tokens(server: Server, tokens: int, prompt: int = 400) -> str:
    """A greedy stream of exactly so many tokens; raises where it breaks off."""
    stream = server.client.completions.create(
        model=MODEL_NAME,
        prompt=[prompt] * 8,
        max_tokens=tokens,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    chunks = list(stream)
    assert chunks[-1].usage.completion_tokens == tokens
    return "".join(chunk.choices[0].text for chunk in chunks[:-1])


@pytest.mark.slow
def test_a_drain_loses_no_token(smollm2: Path, tmp_path: Path) -> None:
    with Server(*SMALL, "--lame-duck-seconds", "1", "--max-batch", "2", model=smollm2, log=tmp_path / "log") as server:
        server.ready()
        alone = [stream_tokens(server, 24, prompt) for prompt in (400, 500, 600)]
        streams = [Background(lambda p=p: stream_tokens(server, 24, p)) for p in (400, 500, 600)]
        # Two run, one waits: both kinds must be served to the end.
        eventually(lambda: (server.state()["requests"]["running"], server.state()["requests"]["waiting"]) == (2, 1), 10)
        server.terminate()
        eventually(lambda: server.get("/ready").status_code == 503, 1)
        late = server.post("/v1/completions", {"prompt": "Hi", "max_tokens": 2})
        assert late.status_code == 200  # endpoints need a moment to hear of the end
        assert late.headers["connection"] == "close"
        assert server.get("/health").status_code == 200
        assert server.state()["draining"] is True
        assert [stream.result() for stream in streams] == alone
        assert server.exit_status(within_s=10) == 0


@pytest.mark.slow
def test_after_the_lame_duck_new_requests_are_turned_away(smollm2: Path, tmp_path: Path) -> None:
    options = (*SMALL, "--lame-duck-seconds", "0.1", "--drain-seconds", "3")
    with Server(*options, model=smollm2, log=tmp_path / "log") as server:
        server.ready()
        endless = Background(lambda: stream_tokens(server, 1000))
        eventually(lambda: server.state()["requests"]["running"] == 1, 10)
        assert server.admin.post("/v1/drain").status_code == 202
        begun = time.monotonic()
        time.sleep(0.2)
        refused = server.post("/v1/completions", {"prompt": "Hi"})
        assert refused.status_code == 503
        assert refused.headers["connection"] == "close"
        assert int(refused.headers["retry-after"]) > 0
        with pytest.raises(openai.APIError, match="drain time ended"):
            endless.result()
        assert 2.5 < time.monotonic() - begun < 6
        assert server.process.poll() is None  # asked over HTTP, it does not end by itself
        server.terminate()
        assert server.exit_status(within_s=10) == 0


@pytest.mark.slow
def test_an_engine_that_hangs_or_dies(smollm2: Path, tmp_path: Path) -> None:
    with Server(*SMALL, "--engine-timeout", "2", model=smollm2, log=tmp_path / "log") as server:
        server.ready()
        engine = server.engine_pid()

        os.kill(engine, signal.SIGSTOP)
        eventually(lambda: server.get("/health").status_code == 503, 5)
        assert "silent" in server.get("/health").json()["status"]
        assert server.get("/ready").status_code == 503
        os.kill(engine, signal.SIGCONT)
        eventually(lambda: server.get("/health").status_code == 200, 5)

        stream = Background(lambda: stream_tokens(server, 1000))
        body = {"prompt": "Hi", "max_tokens": 900, "ignore_eos": True}
        whole = Background(lambda: server.post("/v1/completions", body))
        eventually(lambda: server.state()["requests"]["running"] == 2, 10)
        os.kill(engine, signal.SIGKILL)
        killed = time.monotonic()
        with pytest.raises(openai.APIError, match="killed by SIGKILL"):
            stream.result(2)
        answer = whole.result(2)
        assert time.monotonic() - killed < 2
        assert answer.status_code == 500
        assert answer.json()["error"]["code"] == "engine_error"
        assert server.exit_status(within_s=10) == 1
        assert "killed by SIGKILL" in server.termination_log.read_text()


@pytest.mark.slow
def test_overload_is_told_with_a_time_to_come_back(smollm2: Path, tmp_path: Path) -> None:
    with Server(*SMALL, "--max-batch", "1", model=smollm2, log=tmp_path / "log") as server:
        server.ready()
        first = Background(lambda: stream_tokens(server, 1000))
        eventually(lambda: server.state()["requests"]["running"] == 1, 10)
        queued = [Background(lambda: stream_tokens(server, 1000)) for _ in range(8)]  # eight batches of one
        eventually(lambda: server.state()["requests"]["waiting"] == 8, 10)
        started = time.monotonic()
        refused = server.post("/v1/completions", {"prompt": "Hi"})
        assert time.monotonic() - started < 0.5
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "overloaded"
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        server.process.send_signal(signal.SIGINT)
        eventually(lambda: server.get("/ready").status_code == 503, 10)
        server.process.send_signal(signal.SIGINT)  # somebody who does not want to wait
        assert server.exit_status(within_s=10) == 0
        for request in (first, *queued):
            with pytest.raises((openai.APIError, httpx2.HTTPError)):
                request.result()
