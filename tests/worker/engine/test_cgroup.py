"""Limits as the kernel writes them, in both versions of its files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvtide_worker.engine.cgroup import Cgroup, MemoryLimit

MIB = 1 << 20
V2_POD = "kubepods/pod1/worker"


def write(root: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content + "\n")


def cgroup(tmp_path: Path, membership: str, files: dict[str, str]) -> Cgroup:
    write(tmp_path / "sys", files)
    (tmp_path / "membership").write_text(membership)
    return Cgroup(proc=tmp_path / "membership", sys=tmp_path / "sys")


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        (
            "0::/\n",  # version 2 inside a container: its own cgroup is the mount's root
            {
                "memory.max": str(512 * MIB),
                "memory.current": str(300 * MIB),
                "memory.stat": f"anon 1\ninactive_file {MIB}\nactive_file {2 * MIB}",
            },
            MemoryLimit(512 * MIB, 297 * MIB),
        ),
        (
            f"0::/{V2_POD}\n",  # the pod's limit is tighter than the container's, and counts its other containers too
            {
                f"{V2_POD}/memory.max": "max",
                f"{V2_POD}/memory.current": str(100 * MIB),
                "kubepods/pod1/memory.max": str(400 * MIB),
                "kubepods/pod1/memory.current": str(150 * MIB),
                "kubepods/memory.max": str(900 * MIB),
                "kubepods/memory.current": str(800 * MIB),
            },
            MemoryLimit(400 * MIB, 150 * MIB),
        ),
        (
            "5:cpu,cpuacct:/docker/x\n4:memory:/docker/x\n",  # version 1, where the container sees its own at the root
            {
                "memory/memory.limit_in_bytes": str(256 * MIB),
                "memory/memory.usage_in_bytes": str(128 * MIB),
                "memory/memory.stat": f"cache 9\ntotal_inactive_file {28 * MIB}\ntotal_active_file {MIB}",
            },
            MemoryLimit(256 * MIB, 99 * MIB),
        ),
        (
            "4:memory:/\n",  # version 1's "no limit"
            {"memory/memory.limit_in_bytes": "9223372036854771712", "memory/memory.usage_in_bytes": "1"},
            None,
        ),
        ("0::/\n", {"memory.max": "max", "memory.current": "5"}, None),
        ("", {}, None),
    ],
)  # fmt: skip
def test_memory(tmp_path: Path, membership: str, files: dict[str, str], expected: MemoryLimit | None) -> None:
    assert cgroup(tmp_path, membership, files).memory() == expected


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("0::/\n", {"cpu.max": "100000 100000"}, 1),
        ("0::/\n", {"cpu.max": "50000 100000"}, 1),
        ("0::/\n", {"cpu.max": "max 100000"}, None),
        ("3:cpu:/a\n", {"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "100000"}, 1),
        ("3:cpu:/a\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
    ],
)  # fmt: skip
def test_cpus(tmp_path: Path, membership: str, files: dict[str, str], expected: int | None) -> None:
    """None stands for all CPUs that this process may run on."""
    assert cgroup(tmp_path, membership, files).cpus() == (expected or len(os.sched_getaffinity(0)))


def test_of_this_process() -> None:
    """The real files of whatever machine this runs on can be read."""
    limit = Cgroup().memory()
    assert limit is None or 0 < limit.used_bytes <= limit.limit_bytes
    assert 1 <= Cgroup().cpus() <= (os.cpu_count() or 1)
