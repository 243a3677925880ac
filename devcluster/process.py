"""Processes that outlive the command that started them, known again by pid and start time."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from devcluster.paths import LOGS, REPOSITORY


@dataclass(frozen=True)
class Process:
    """One started process. The start time, in clock ticks since boot, tells it from a later one with its pid."""

    pid: int
    start_ticks: int
    command: tuple[str, ...]

    @property
    def alive(self) -> bool:
        """Whether it still runs; one that has ended and only waits to be reaped does not."""
        seen = _stat(self.pid)
        return seen is not None and seen == (self.start_ticks, True)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, to this process and never to another that has its pid by now."""
        if self.alive:
            os.kill(self.pid, number)


def start(name: str, command: Sequence[str], *, pass_fds: Sequence[int] = ()) -> Process:
    """Start a command in a session of its own, its output appended to the log of that name."""
    LOGS.mkdir(parents=True, exist_ok=True)
    with log_file(name).open("ab") as log:
        child = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=tuple(pass_fds),
            cwd=REPOSITORY,
        )
    seen = _stat(child.pid)
    return Process(child.pid, seen[0] if seen else 0, tuple(command))


def stop(processes: Iterable[Process], timeout_s: float = 8.0) -> None:
    """Ask all of them to end at once, and kill those that still run after the timeout."""
    waiting = [process for process in processes if process.alive]
    for process in waiting:
        process.signal(signal.SIGTERM)
    deadline = time.monotonic() + timeout_s
    while waiting and time.monotonic() < deadline:
        time.sleep(0.05)
        waiting = [process for process in waiting if process.alive]
    for process in waiting:
        process.signal(signal.SIGKILL)


def log_file(name: str) -> Path:
    """Where the output of the process of that name goes."""
    return LOGS / f"{name}.log"


def log_tail(name: str, lines: int = 15) -> str:
    """The last lines of a process's log, for an error message."""
    path = log_file(name)
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.exists() else ""


def _stat(pid: int) -> tuple[int, bool] | None:
    """Start time and whether it runs, from proc(5): fields 22 and 3; the name before them may hold spaces."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(fields[19]), fields[0] not in "ZX"
