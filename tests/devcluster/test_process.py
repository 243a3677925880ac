"""A process is known by its pid and its start, and ends when it is told to."""

import dataclasses
import sys
import time
from pathlib import Path

import pytest

from devcluster import process


@pytest.fixture(autouse=True)
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "LOGS", tmp_path)


def started(program: str) -> process.Process:
    running = process.start("test", [sys.executable, "-u", "-c", program])
    deadline = time.monotonic() + 10
    while "ready" not in process.log_tail("test"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return running


@pytest.mark.parametrize(
    "program",
    [
        "import time; print('ready'); time.sleep(60)",
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready'); time.sleep(60)",
    ],
    ids=["willing", "unwilling"],
)
def test_a_process_is_alive_until_it_is_stopped(program: str) -> None:
    running = started(program)
    assert running.alive
    process.stop([running], timeout_s=0.5)
    deadline = time.monotonic() + 5
    while running.alive:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_another_process_with_the_same_pid_is_left_alone() -> None:
    running = started("import time; print('ready'); time.sleep(60)")
    earlier = dataclasses.replace(running, start_ticks=running.start_ticks - 1)
    assert not earlier.alive
    process.stop([earlier])
    assert running.alive
    process.stop([running])
