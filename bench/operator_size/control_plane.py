"""A control plane of its own on loopback: etcd, kube-apiserver and kube-controller-manager of the devcluster's binary.

Nothing of the devcluster itself is touched: other ports, another folder, no network namespace.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from bench.operator_size.processes import Processes, free_ports
from devcluster.binaries import binary, build, built

# What the children of an LLMDeployment need: their pods, their end, and the state of a budget.
CONTROLLERS = (
    "deployment-controller",
    "replicaset-controller",
    "garbage-collector-controller",
    "disruption-controller",
    "namespace-controller",
)
# By the name of their kubeconfig: who they are, and of which group. The operator is the chart's service account.
USERS = {"admin": ("admin", "system:masters"), "operator": ("system:serviceaccount:kvtide-system:kvtide-operator", "")}


@dataclass(frozen=True)
class ControlPlane:
    """Where it is. `kubeconfig` by user: `admin` may do anything, `operator` what it is bound to."""

    server: str
    kubeconfig: dict[str, Path]
    token: str


async def start(processes: Processes) -> ControlPlane:
    """Starts the three and waits until the API server is ready. Raises RuntimeError where one of them ends."""
    if not built():
        print("building Kubernetes once, some minutes", flush=True)
        build()
    folder = processes.folder
    etcd_port, peer_port, api_port, controllers_port = free_ports(4)
    etcd = f"http://127.0.0.1:{etcd_port}"
    server = f"https://127.0.0.1:{api_port}"
    tokens = {user: secrets.token_hex(16) for user in USERS}
    token_file, key_file = folder / "tokens.csv", folder / "service-account.key"
    token_file.write_text("".join(f'{tokens[user]},{name},{name},"{group}"\n' for user, (name, group) in USERS.items()))
    key_file.write_bytes(
        rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    kubeconfigs = {user: _kubeconfig(folder, user, server, token) for user, token in tokens.items()}
    flags = {
        "etcd": {
            "data-dir": folder / "etcd",
            "listen-client-urls": etcd,
            "advertise-client-urls": etcd,
            "listen-peer-urls": f"http://127.0.0.1:{peer_port}",
            "unsafe-no-fsync": "true",
        },
        "kube-apiserver": {
            "etcd-servers": etcd,
            "bind-address": "127.0.0.1",
            "secure-port": api_port,
            "cert-dir": folder / "apiserver",
            "token-auth-file": token_file,
            "authorization-mode": "RBAC",
            "disable-admission-plugins": "ServiceAccount",
            "endpoint-reconciler-type": "none",
            "service-account-issuer": "https://kubernetes.default.svc.cluster.local",
            "service-account-key-file": key_file,
            "service-account-signing-key-file": key_file,
            "service-cluster-ip-range": "10.96.0.0/16",
        },
        "kube-controller-manager": {
            "kubeconfig": kubeconfigs["admin"],
            "bind-address": "127.0.0.1",
            "secure-port": controllers_port,
            "cert-dir": folder / "controllers",
            "controllers": ",".join(CONTROLLERS),
            "leader-elect": "false",
            "concurrent-deployment-syncs": 20,
            "concurrent-replicaset-syncs": 20,
            "kube-api-qps": 2000,
            "kube-api-burst": 4000,
        },
    }
    for name in flags:
        processes.start(name, [binary(name), *(f"--{flag}={value}" for flag, value in flags[name].items())])
        if name == "kube-apiserver":
            await _until_ready(server, tokens["admin"], processes)
    return ControlPlane(server, kubeconfigs, tokens["admin"])


async def scrape(plane: ControlPlane) -> str:
    """The API server's own metrics."""
    headers = {"Authorization": f"Bearer {plane.token}"}
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{plane.server}/metrics", headers=headers, ssl=False) as response,
    ):
        return await response.text()


def _kubeconfig(folder: Path, user: str, server: str, token: str) -> Path:
    path = folder / f"{user}.yaml"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "size",
        # Its certificate is made at its start, by itself.
        "clusters": [{"name": "size", "cluster": {"server": server, "insecure-skip-tls-verify": True}}],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": "size", "context": {"cluster": "size", "user": user}}],
    }
    path.write_text(yaml.safe_dump(config))
    return path


async def _until_ready(server: str, token: str, processes: Processes) -> None:
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession() as session:
        while True:
            processes.check()
            try:
                async with session.get(f"{server}/readyz", headers=headers, ssl=False) as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.3)
