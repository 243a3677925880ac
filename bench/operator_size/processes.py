"""Processes of the benchmark, and what the kernel says of them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

MIB = 2**20
TICKS = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass
class Processes:
    """What was started, in its order."""

    folder: Path
    logs: Path
    started: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str, command: Sequence[str], env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Starts one in a session of its own, so that Ctrl-C comes to us alone; its input is a pipe."""
        with (self.logs / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )
        self.started[name] = process
        return process

    def check(self) -> None:
        """Raises RuntimeError with the last words of a process that has ended."""
        for name, process in self.started.items():
            if process.poll() is not None:
                words = (self.logs / f"{name}.log").read_text(errors="replace").splitlines()[-15:]
                raise RuntimeError(f"{name} ended with status {process.returncode}:\n" + "\n".join(words))

    def cpu_seconds(self) -> float:
        """What all of them and this process have taken so far."""
        return sum(cpu_seconds(process.pid) for process in self.started.values()) + cpu_seconds(os.getpid())

    def stop_one(self, name: str) -> None:
        """Ends one of them, however long it takes."""
        process = self.started.pop(name)
        process.send_signal(signal.SIGTERM)
        process.wait()

    def stop(self, within_s: float = 5.0) -> None:
        """Ends all, the last one first; kills what has not ended in time."""
        for process in reversed(self.started.values()):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + within_s
        for process in reversed(self.started.values()):
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.started.clear()


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(listening.getsockname()[1]) for listening in sockets]
    for listening in sockets:
        listening.close()
    return ports


def rss_bytes(pid: int) -> int:
    """Resident memory of a process: proc(5), statm."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES


def cpu_seconds(pid: int) -> float:
    """Time on a processor, its own and the kernel's for it: proc(5), stat, fields 14 and 15."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The least-squares slope of points (x, y); 0 of fewer than two."""
    if len(points) < 2:
        return 0.0
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0
