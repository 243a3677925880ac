"""The control groups that the node's pods live in, under one root of our own, on cgroup v1 (also hybrid) and v2."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from devcluster.paths import INSTANCE

MOUNT = Path("/sys/fs/cgroup")
CONTROLLERS = ("cpuset", "cpu", "io", "memory", "hugetlb", "pids")


def is_v2() -> bool:
    return (MOUNT / "cgroup.controllers").exists()


def create() -> None:
    """Make the root in every hierarchy: the kubelet refuses to start where one lacks it."""
    for hierarchy in _hierarchies():
        group = hierarchy / INSTANCE
        if is_v2():
            _delegate(hierarchy)
        group.mkdir(exist_ok=True)
        if is_v2():
            _delegate(group)
        for setting in ("cpuset.cpus", "cpuset.mems"):
            # A v1 cpuset starts empty, and nothing can run in it until it is filled.
            if not is_v2() and (group / setting).exists():
                (group / setting).write_text((hierarchy / setting).read_text())


def kill_all(timeout_s: float = 10.0) -> None:
    """Kill what still runs in our groups: containers whose runtime has gone."""
    deadline = time.monotonic() + timeout_s
    while (pids := _members()) and time.monotonic() < deadline:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.05)


def delete() -> None:
    """Remove our groups, leaves first; the kernel may hold a dead member's group for a moment."""
    for hierarchy in _hierarchies():
        top = hierarchy / INSTANCE
        groups = sorted((path for path in top.rglob("*") if path.is_dir()), reverse=True) if top.exists() else []
        for group in [*groups, top]:
            for _ in range(100):
                try:
                    group.rmdir()
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.02)
                else:
                    break


def _hierarchies() -> list[Path]:
    if is_v2():
        return [MOUNT]
    # v1 joins controllers as it likes ("cpu,cpuacct", with links for each): a link is another way to one of these.
    return [path for path in sorted(MOUNT.iterdir()) if path.is_dir() and not path.is_symlink()]


def _members() -> set[int]:
    files = [file for hierarchy in _hierarchies() for file in (hierarchy / INSTANCE).rglob("cgroup.procs")]
    return {int(pid) for file in files for pid in file.read_text().split()}


def _delegate(group: Path) -> None:
    """Let the children of a v2 group have the controllers that containers are limited by."""
    available = (group / "cgroup.controllers").read_text().split()
    for controller in CONTROLLERS:
        if controller in available:
            (group / "cgroup.subtree_control").write_text(f"+{controller}")
