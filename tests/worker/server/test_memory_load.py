"""A worker under mixed requests stays within its plan, part by part and as the kernel counts its processes."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from tests.worker.server.harness import MODEL_NAME, Server

DEVICE_MIB = 1280
LOAD_SECONDS = 20


def private_bytes(pid: int) -> int:
    """Memory that only this process has; 0 where it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon")), 0)


@contextmanager
def watched(server: Server) -> Iterator[list[int]]:
    """What all processes of a server have together, from its start, every few milliseconds."""
    seen: list[int] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.005):
            children: list[str] = []
            for tasks in Path(f"/proc/{server.process.pid}/task").glob("*/children"):
                try:
                    children += tasks.read_text().split()
                except OSError:
                    continue
            seen.append(sum(map(private_bytes, [server.process.pid, *map(int, children)])))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    yield seen
    ended.set()
    thread.join()


def use(server: Server, user: int, until: float) -> int:
    """Requests of all sizes, one after another; how many were answered."""
    choose, answered = random.Random(user), 0
    with httpx2.Client(base_url=server.url, timeout=240) as client:
        while time.monotonic() < until:
            words = choose.choices(["the", "cat", "sat", "on", "a", "mat"], k=choose.choice([3, 60, 400, 1200]))
            answer = client.post(
                "/v1/completions",
                json={
                    "model": MODEL_NAME,
                    "prompt": " ".join(words),
                    "max_tokens": choose.choice([1, 10, 40]),
                    "temperature": choose.choice([0, 1]),
                    "top_p": choose.choice([1, 0.99]),
                },
            )
            assert answer.status_code == 200, answer.text
            answered += 1
    return answered


@pytest.mark.slow
def test_a_mixed_load_stays_within_the_plan(smollm2: Path, tmp_path: Path) -> None:
    options = ("--memory", f"{DEVICE_MIB}Mi", "--max-context", "2048")
    with Server(*options, model=smollm2, log=tmp_path / "log") as server, watched(server) as taken:
        server.ready()
        until = time.monotonic() + LOAD_SECONDS
        with ThreadPoolExecutor(16) as users:
            answered = sum(users.map(lambda user: use(server, user, until), range(16)))
        memory = server.state()["memory"]

    assert answered >= 16
    predicted, measured = memory["predicted"], memory["measured"]
    assert sum(predicted.values()) == DEVICE_MIB << 20
    # The reserve stays untouched, at the peak of loading and under load.
    assert predicted["weightsBytes"] + predicted["kvPoolBytes"] < max(taken)
    assert max(taken) <= (DEVICE_MIB << 20) - predicted["reserveBytes"]

    assert measured["weightsBytes"] == pytest.approx(predicted["weightsBytes"], rel=0.01)
    assert measured["kvPoolBytes"] == predicted["kvPoolBytes"]
    assert measured["activationsBytes"] <= predicted["activationsBytes"]
    assert measured["otherBytes"] <= predicted["overheadBytes"]
    assert measured["peakBytes"] <= max(taken) * 1.01
