"""What processes have for themselves, from /proc. Pages of mapped files do not count: the kernel may drop them."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

_PROC = Path("/proc")


def private_bytes(pid: int | None = None, proc: Path = _PROC) -> int:
    """What one process has, this one by default; 0 where there is none any more."""
    try:
        lines = (proc / str(pid or os.getpid()) / "status").read_text().splitlines()
    except OSError:
        return 0
    # A process that just ended has no such line.
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:")), 0)


def family_bytes() -> int:
    """What this process, the one that spawned it and the others that this one spawned have together."""
    parent = multiprocessing.parent_process()
    if parent is None or parent.pid is None:
        return private_bytes()
    return sum(map(private_bytes, {parent.pid, os.getpid(), *_children(parent.pid)}))


def _children(pid: int) -> list[int]:
    """Processes that its main thread, or another, has spawned; none where the kernel does not tell."""
    children: list[int] = []
    for task in (_PROC / str(pid) / "task").glob("*/children"):
        try:
            children += map(int, task.read_text().split())
        except OSError:
            continue
    return children
