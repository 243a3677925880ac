"""kubectl, as the cluster's administrator."""

from __future__ import annotations

import subprocess

from devcluster.binaries import binary
from devcluster.paths import KUBECONFIG


def kubectl(*arguments: str, stdin: str | None = None) -> str:
    """Run kubectl and give its output. Raises RuntimeError with what it said."""
    command = [binary("kubectl"), "--kubeconfig", str(KUBECONFIG), *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"`kubectl {' '.join(arguments)}` failed: {done.stderr.strip()}")
    return done.stdout
