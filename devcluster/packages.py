"""What comes from Debian or Ubuntu: looked for as commands, installed where missing."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

# The package that brings each file; a name without a slash is looked for on the PATH.
NODE = {
    "containerd": "containerd",
    "runc": "runc",
    "/usr/lib/cni/ptp": "containernetworking-plugins",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "umount": "mount",
    "prometheus": "prometheus",
}
IMAGES = {
    "buildah": "buildah",
    "mmdebstrap": "mmdebstrap",
    "/usr/share/keyrings/debian-archive-keyring.gpg": "debian-archive-keyring",
}
BROWSER = {"chromium": "chromium"}

POLICY = Path("/usr/sbin/policy-rc.d")


def missing(needed: dict[str, str]) -> list[str]:
    """The packages, sorted, whose files are not there."""
    return sorted({package for file, package in needed.items() if not _there(file)})


def install(needed: dict[str, str]) -> None:
    """Install what is missing with apt. Raises RuntimeError with apt's own words where it cannot."""
    packages = missing(needed)
    if not packages:
        return
    if not shutil.which("apt-get"):
        raise RuntimeError(f"missing: {', '.join(packages)}; there is no apt-get here: install them another way")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    # containerd and prometheus come with services that would start at once; devcluster runs its own.
    ours = not POLICY.exists()
    if ours:
        POLICY.write_text("#!/bin/sh\nexit 101\n")
        POLICY.chmod(0o755)
    try:
        for command in (
            ["apt-get", "update", "-qq"],
            ["apt-get", "install", "-qq", "--yes", "--no-install-recommends", *packages],
        ):
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise RuntimeError(f"`{' '.join(command)}` failed:\n{done.stderr.strip()}")
    finally:
        if ours:
            POLICY.unlink()


def _there(file: str) -> bool:
    return Path(file).exists() if "/" in file else shutil.which(file) is not None
