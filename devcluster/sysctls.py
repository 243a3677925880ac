"""Kernel settings of the whole machine that the kubelet changes: written down before it starts, put back after."""

from __future__ import annotations

from pathlib import Path

# kubelet, pkg/kubelet/cm/container_manager_linux.go, setupKernelTunables
CHANGED_BY_KUBELET = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)


def read() -> dict[str, str]:
    """The present values of those that this kernel has."""
    files = {name: Path("/proc/sys") / name for name in CHANGED_BY_KUBELET}
    return {name: file.read_text().strip() for name, file in files.items() if file.exists()}


def write(values: dict[str, str]) -> None:
    """Put values back, where they differ."""
    for name, value in values.items():
        file = Path("/proc/sys") / name
        if file.read_text().strip() != value:
            file.write_text(value)
