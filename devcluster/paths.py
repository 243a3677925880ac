"""Where devcluster keeps things: what is dear to make in the cache, what lives only while it is up in `run`."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
GO_MODULE = Path(__file__).resolve().parent / "go"

CACHE = Path(os.environ.get("KVTIDE_CACHE") or Path.home() / ".cache" / "kvtide").absolute()
MODELS = CACHE / "models"

HOME = CACHE / "devcluster"
BINARIES = HOME / "bin"
CONTAINERD_ROOT = HOME / "containerd"
BUILDAH_ROOT = HOME / "buildah"

RUN = HOME / "run"
LOGS = RUN / "logs"
PKI = RUN / "pki"
CONTAINERD_SOCKET = RUN / "containerd.sock"
KUBECONFIG = RUN / "kubeconfig.yaml"

# The kernel's names are one space for the whole machine: two caches are two clusters, and must not meet there.
INSTANCE = "kvtide-" + hashlib.sha256(str(CACHE).encode()).hexdigest()[:6]
