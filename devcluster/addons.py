"""What the cluster holds from its start: DNS, the models' volume, and Prometheus's permission to look for pods."""

from __future__ import annotations

from pathlib import Path
from string import Template

from devcluster import binaries, netns
from devcluster.config import PAUSE_IMAGE
from devcluster.kubectl import kubectl
from devcluster.paths import MODELS

MANIFESTS = Path(__file__).parent / "manifests"


def render() -> str:
    """All manifests as one YAML stream."""
    values = {
        "PAUSE_IMAGE": PAUSE_IMAGE,
        "BINARIES": binaries.folder(),
        "DNS_ADDRESS": netns.DNS_SERVICE_ADDRESS,
        "MODELS": MODELS,
    }
    # Several documents need a mark between them; the files need not all end with one.
    return "\n---\n".join(Template(file.read_text()).substitute(values) for file in sorted(MANIFESTS.glob("*.yaml")))


def apply() -> None:
    """Apply them; what is as it should be stays as it is."""
    MODELS.mkdir(parents=True, exist_ok=True)
    kubectl("apply", "--server-side", "--field-manager=devcluster", "--force-conflicts", "-f", "-", stdin=render())
