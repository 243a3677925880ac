"""Kubeconfig files: for each component inside the node's network, and for the person outside it."""

from __future__ import annotations

import base64
from pathlib import Path

import yaml

from devcluster import certificates, netns
from devcluster.paths import KUBECONFIG, RUN

API_PORT = 6443
USERS_INSIDE = ("kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "prometheus")


def file_for(user: str) -> Path:
    """The kubeconfig of a component."""
    return RUN / "kubeconfigs" / f"{user}.yaml"


def files(api_port_outside: int) -> dict[Path, str]:
    """One for each component, and the administrator's, which goes through the port on 127.0.0.1."""
    inside = f"https://{netns.NODE_ADDRESS}:{API_PORT}"
    return {
        **{file_for(user): render(user, inside) for user in USERS_INSIDE},
        KUBECONFIG: render("admin", f"https://127.0.0.1:{api_port_outside}"),
    }


def render(user: str, server: str) -> str:
    """A kubeconfig that stands alone: the certificates are in it."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "devcluster",
        "clusters": [
            {
                "name": "devcluster",
                "cluster": {
                    "server": server,
                    "certificate-authority-data": _data(certificates.certificate("cluster-ca")),
                },
            }
        ],
        "users": [
            {
                "name": user,
                "user": {
                    "client-certificate-data": _data(certificates.certificate(user)),
                    "client-key-data": _data(certificates.key(user)),
                },
            }
        ],
        "contexts": [{"name": "devcluster", "context": {"cluster": "devcluster", "user": user}}],
    }
    return yaml.safe_dump(config, sort_keys=False)


def _data(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
