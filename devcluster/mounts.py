"""Mounts that outlive the processes that made them: found by the folders that are ours, and taken down."""

from __future__ import annotations

import subprocess
from pathlib import Path


def below(folder: Path) -> list[str]:
    """The mount points at and under a folder, the deepest and latest first (proc(5), mountinfo: field 5)."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    # The kernel writes a space in a path as \040, and three other characters likewise.
    plain = [point.encode().decode("unicode_escape") if "\\" in point else point for point in points]
    return [point for point in reversed(plain) if Path(point).is_relative_to(folder)]


def unmount_below(folder: Path) -> None:
    """Unmount everything at and under a folder; lazily, for what a dying process still holds."""
    for point in below(folder):
        subprocess.run(["umount", "--lazy", point], check=True)
