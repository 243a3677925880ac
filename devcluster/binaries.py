"""The Kubernetes components, etcd, CoreDNS, kubectl and helm: built once from the Go module beside this file."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from devcluster.paths import BINARIES, GO_MODULE

KUBERNETES_VERSION = "1.34.4"
# Go names it after the module.
ALL_IN_ONE = "devcluster"
LINKS = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-proxy",
    "kubelet",
    "coredns",
    "kubectl",
    "kubernetes-discovery",
)
HELM = "helm.sh/helm/v3/cmd/helm"
# For a shell's PATH: it stays right when the binaries are built anew.
CURRENT = BINARIES / "current"


def folder() -> Path:
    """Where the binaries of the present sources are, built or not: the name is a hash of what goes in."""
    inputs = hashlib.sha256(KUBERNETES_VERSION.encode())
    for source in sorted(GO_MODULE.rglob("*")):
        if source.suffix == ".go" or source.name in ("go.mod", "go.sum"):
            inputs.update(str(source.relative_to(GO_MODULE)).encode())
            inputs.update(source.read_bytes())
    return BINARIES / inputs.hexdigest()[:12]


def binary(name: str) -> str:
    """The path of one of them, as a command to run."""
    return str(folder() / name)


def built() -> bool:
    return folder().exists()


def build() -> None:
    """Build what the present sources give, and drop what earlier ones gave. Raises RuntimeError with Go's words.

    From nothing it downloads some hundred modules and takes about four minutes on two cores.
    """
    target = folder()
    if target.exists():
        return
    if not shutil.which("go"):
        raise RuntimeError("Go 1.24 or later is needed to build Kubernetes: put `go` on the PATH (https://go.dev/dl)")
    partial = target.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    major, minor, _ = KUBERNETES_VERSION.split(".")
    version = "k8s.io/component-base/version"
    stamps = {"gitVersion": f"v{KUBERNETES_VERSION}", "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    flags = "-s -w " + " ".join(f"-X {version}.{name}={value}" for name, value in stamps.items())
    command = ["go", "build", "-trimpath", "-ldflags", flags, "-o", f"{partial}/", "./...", HELM]
    # Without cgo the results are static: the pause image holds nothing but one of them.
    environment = {**os.environ, "CGO_ENABLED": "0"}
    done = subprocess.run(command, cwd=GO_MODULE, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"`{' '.join(command)}` failed in {GO_MODULE}:\n{done.stderr.strip()}")
    for name in LINKS:
        # Relative, so that a pod which mounts the folder elsewhere can follow it.
        (partial / name).symlink_to(ALL_IN_ONE)
    os.replace(partial, target)
    CURRENT.unlink(missing_ok=True)
    CURRENT.symlink_to(target.name)
    for other in BINARIES.iterdir():
        if other not in (target, CURRENT):
            shutil.rmtree(other)
