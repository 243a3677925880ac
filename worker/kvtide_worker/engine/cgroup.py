"""What the container may use: memory and CPU limits from cgroup version 1 or 2."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class MemoryLimit:
    """A memory limit and what is used of it, in bytes. Pages of files are not used: the kernel takes them back before
    it kills."""

    limit_bytes: int
    used_bytes: int


@dataclass(frozen=True)
class Cgroup:
    """The cgroup of this process. proc and sys are arguments for the tests."""

    proc: Path = Path("/proc/self/cgroup")
    sys: Path = Path("/sys/fs/cgroup")

    def memory(self) -> MemoryLimit | None:
        """The tightest memory limit on this process; None where there is none."""
        limits = []
        for folder in self._folders("memory"):
            names, prefix = ("memory.max", "memory.current"), ""
            if not (folder / names[0]).is_file():
                names, prefix = ("memory.limit_in_bytes", "memory.usage_in_bytes"), "total_"
            limit, usage = _read_int(folder / names[0]), _read_int(folder / names[1])
            if limit is not None and usage is not None:
                # Version 1 does not say what of the kernel's own it could drop.
                droppable = (f"{prefix}inactive_file", f"{prefix}active_file", "slab_reclaimable")
                limits.append(MemoryLimit(limit, max(usage - sum(_read_stat(folder, key) for key in droppable), 0)))
        # Version 1 writes "no limit" as the largest page-aligned 64-bit number.
        bounded = [limit for limit in limits if limit.limit_bytes < 1 << 60]
        return min(bounded, key=lambda limit: limit.limit_bytes, default=None)

    def cpus(self) -> int:
        """CPUs that this process may keep busy: affinity, cut to the tightest quota; at least 1."""
        quotas = [float(len(os.sched_getaffinity(0)))]
        for folder in self._folders("cpu"):
            quota, period = _read_int(folder / "cpu.cfs_quota_us"), _read_int(folder / "cpu.cfs_period_us")
            if (folder / "cpu.max").is_file():
                words = (folder / "cpu.max").read_text().split()
                quota, period = (None if words[0] == "max" else int(words[0])), int(words[1])
            if quota is not None and period is not None and quota > 0:
                quotas.append(quota / period)
        return max(math.floor(min(quotas)), 1)

    def _folders(self, controller: str) -> list[Path]:
        """This process's cgroup under the controller and all its parents: each may hold a limit.

        Inside a container the path may not be mounted; then the mount's root is the container's own cgroup.
        """
        folders = []
        for line in self.proc.read_text().splitlines() if self.proc.is_file() else ():
            _, controllers, path = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            root = self.sys / controllers if controllers else self.sys
            own = root / path.lstrip("/")
            folders += [folder for folder in (own, *own.parents) if folder.is_relative_to(root)]
        return folders


def _read_int(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _read_stat(folder: Path, key: str) -> int:
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.split()[0] == key), 0)
