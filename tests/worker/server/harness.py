"""`kvtide serve` as a person starts it: a process of its own, with real weights, spoken to over HTTP."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx2
import openai

KVTIDE = Path(sys.executable).parent / "kvtide"
MODEL_NAME = "smollm2"


class Server:
    """One run of `kvtide serve` on free ports. Use as a context manager; `ready` waits until it serves."""

    def __init__(self, *options: str, model: Path, log: Path) -> None:
        self._log = log
        self.termination_log = log.with_suffix(".termination")
        self.termination_log.touch()
        command = [
            str(KVTIDE), "serve", "--model", str(model), "--served-name", MODEL_NAME,
            "--port", "0", "--admin-port", "0", *options,
        ]  # fmt: skip
        with log.open("w") as output:
            self.process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "KVTIDE_TERMINATION_LOG": str(self.termination_log)},
            )

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    @property
    def output(self) -> str:
        """What it said so far."""
        return self._log.read_text()

    @cached_property
    def url(self) -> str:
        return self._said(r"listening on (\S+),")

    @cached_property
    def admin(self) -> httpx2.Client:
        url, token = self._said(r"admin port on (\S+), token \S+"), self._said(r", token (\S+)")
        return httpx2.Client(base_url=url, headers={"Authorization": f"Bearer {token}"})

    @cached_property
    def http(self) -> httpx2.Client:
        return httpx2.Client(base_url=self.url, timeout=60)

    @cached_property
    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=60)

    def state(self, idle_s: float = 0.0) -> dict[str, Any]:
        answer = self.admin.get("/v1/state", params={"idleSeconds": idle_s}, timeout=idle_s + 5)
        return answer.raise_for_status().json()

    def get(self, path: str) -> httpx2.Response:
        return self.http.get(path)

    def post(self, path: str, body: dict[str, Any]) -> httpx2.Response:
        return self.http.post(path, json=body)

    def ready(self) -> Server:
        eventually(lambda: f"serving {MODEL_NAME}" in self.output or self.process.poll() is not None, 120)
        assert self.process.poll() is None, self.output
        return self

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def exit_status(self, within_s: float) -> int:
        return self.process.wait(within_s)

    def engine_pid(self) -> int:
        """The child that runs the engine; the other child is multiprocessing's resource tracker."""
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
                command = (folder / "cmdline").read_text()
            except OSError:
                continue
            if parent == self.process.pid and "spawn_main" in command:
                return int(folder.name)
        raise AssertionError("there is no engine process")

    def _said(self, pattern: str) -> str:
        eventually(lambda: re.search(pattern, self.output) or self.process.poll() is not None, 60)
        found = re.search(pattern, self.output)
        assert found, self.output
        return found[1]


def eventually(seen: Callable[[], object], within_s: float) -> None:
    """Wait until something is so; fails when it is not in time."""
    end = time.monotonic() + within_s
    while not seen():
        assert time.monotonic() < end, f"not within {within_s} s"
        time.sleep(0.02)


class Background:
    """Something that runs beside the test; `result` waits for it and raises what it raised."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._outcome: list[Any] = []
        self._error: list[BaseException] = []

        def run() -> None:
            try:
                self._outcome.append(work())
            except BaseException as error:
                self._error.append(error)

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def result(self, within_s: float = 60) -> Any:
        self._thread.join(within_s)
        assert not self._thread.is_alive(), "still running"
        if self._error:
            raise self._error[0]
        return self._outcome[0]
