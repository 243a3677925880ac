"""The node's daemons: the command line of each, and how to tell that it is well."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from devcluster import certificates, config, kubeconfig, netns, prometheus
from devcluster.binaries import binary
from devcluster.certificates import NODE, certificate, key
from devcluster.paths import CONTAINERD_SOCKET, RUN


@dataclass(frozen=True)
class Probe:
    """An HTTP address inside the node's network that answers 200 while its component is well."""

    port: int
    path: str
    tls: bool = False
    host: str = "127.0.0.1"

    def answers(self, timeout_s: float = 2.0) -> bool:
        connection: http.client.HTTPConnection
        try:
            raw = netns.connect(self.host, self.port, timeout_s)
            with raw:
                connection = http.client.HTTPConnection(self.host, self.port)
                connection.sock = self._secured(raw) if self.tls else raw
                connection.request("GET", self.path)
                return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False

    def _secured(self, raw: socket.socket) -> ssl.SSLSocket:
        context = ssl.create_default_context(cafile=str(certificate("cluster-ca")))
        return context.wrap_socket(raw, server_hostname=self.host)


@dataclass(frozen=True)
class SocketProbe:
    """A Unix socket that takes connections while its component is well."""

    path: Path

    def answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as client:
            try:
                client.connect(str(self.path))
            except OSError:
                return False
        return True


@dataclass(frozen=True)
class Component:
    """One daemon. Without a probe it is well as long as it runs."""

    name: str
    command: tuple[str, ...]
    probe: Probe | SocketProbe | None = None

    def answers(self) -> bool:
        return self.probe is None or self.probe.answers()


def all_components() -> list[Component]:
    """Every daemon, in the order of starting. The proxy waits for the node, which the kubelet registers."""
    return [
        _containerd(),
        _etcd(),
        _apiserver(),
        _controllers(),
        _scheduler(),
        _kubelet(),
        _proxy(),
        _discovery(),
        _prometheus(),
    ]


def _containerd() -> Component:
    command = _inside("containerd", {"config": config.CONTAINERD_FILE})
    return Component("containerd", command, SocketProbe(CONTAINERD_SOCKET))


def _etcd() -> Component:
    flags = {
        "data-dir": RUN / "etcd",
        "listen-client-urls": "https://127.0.0.1:2379",
        "advertise-client-urls": "https://127.0.0.1:2379",
        "listen-peer-urls": "http://127.0.0.1:2380",
        "listen-metrics-urls": "http://127.0.0.1:2381",
        "client-cert-auth": "true",
        "trusted-ca-file": certificate("etcd-ca"),
        "cert-file": certificate("etcd"),
        "key-file": key("etcd"),
        # The data lives no longer than the cluster: nothing is gained by waiting for the disk.
        "unsafe-no-fsync": "true",
    }
    return Component("etcd", _inside(binary("etcd"), flags), Probe(2381, "/health"))


def _apiserver() -> Component:
    flags = {
        "advertise-address": netns.NODE_ADDRESS,
        "allow-privileged": "true",
        "authorization-mode": "Node,RBAC",
        "client-ca-file": certificate("cluster-ca"),
        "enable-admission-plugins": "NodeRestriction",
        "etcd-servers": "https://127.0.0.1:2379",
        "etcd-cafile": certificate("etcd-ca"),
        "etcd-certfile": certificate("kube-apiserver-to-etcd"),
        "etcd-keyfile": key("kube-apiserver-to-etcd"),
        "kubelet-certificate-authority": certificate("cluster-ca"),
        "kubelet-client-certificate": certificate("kube-apiserver-to-kubelet"),
        "kubelet-client-key": key("kube-apiserver-to-kubelet"),
        "kubelet-preferred-address-types": "InternalIP",
        "proxy-client-cert-file": certificate("front-proxy-client"),
        "proxy-client-key-file": key("front-proxy-client"),
        "requestheader-allowed-names": "front-proxy-client",
        "requestheader-client-ca-file": certificate("front-proxy-ca"),
        "requestheader-extra-headers-prefix": "X-Remote-Extra-",
        "requestheader-group-headers": "X-Remote-Group",
        "requestheader-username-headers": "X-Remote-User",
        "secure-port": kubeconfig.API_PORT,
        "service-account-issuer": "https://kubernetes.default.svc.cluster.local",
        "service-account-key-file": certificates.SERVICE_ACCOUNT_KEY,
        "service-account-signing-key-file": certificates.SERVICE_ACCOUNT_KEY,
        "service-cluster-ip-range": netns.SERVICE_CIDR,
        "tls-cert-file": certificate("kube-apiserver"),
        "tls-private-key-file": key("kube-apiserver"),
    }
    probe = Probe(kubeconfig.API_PORT, "/readyz", tls=True)
    return Component("kube-apiserver", _inside(binary("kube-apiserver"), flags), probe)


def _controllers() -> Component:
    flags = {
        **_serving("kube-controller-manager"),
        "cluster-cidr": netns.POD_CIDR,
        "cluster-name": "devcluster",
        "cluster-signing-cert-file": certificate("cluster-ca"),
        "cluster-signing-key-file": key("cluster-ca"),
        "controllers": "*,-cloud-node-lifecycle-controller,-node-route-controller",
        "leader-elect": "false",
        "root-ca-file": certificate("cluster-ca"),
        "service-account-private-key-file": certificates.SERVICE_ACCOUNT_KEY,
        "service-cluster-ip-range": netns.SERVICE_CIDR,
        "use-service-account-credentials": "true",
    }
    command = _inside(binary("kube-controller-manager"), flags)
    return Component("kube-controller-manager", command, Probe(10257, "/healthz", tls=True))


def _scheduler() -> Component:
    flags = {**_serving("kube-scheduler"), "leader-elect": "false"}
    command = _inside(binary("kube-scheduler"), flags)
    return Component("kube-scheduler", command, Probe(10259, "/healthz", tls=True))


def _proxy() -> Component:
    command = _inside(binary("kube-proxy"), {"config": config.KUBE_PROXY_FILE})
    return Component("kube-proxy", command, Probe(10249, "/healthz"))


def _kubelet() -> Component:
    flags = {
        "config": config.KUBELET_FILE,
        "hostname-override": NODE,
        "kubeconfig": kubeconfig.file_for("kubelet"),
        "node-ip": netns.NODE_ADDRESS,
        "root-dir": config.KUBELET_ROOT,
        "cert-dir": RUN / "kubelet" / "pki",
    }
    command = _inside(binary("kubelet"), flags)
    return Component("kubelet", command, Probe(10248, "/healthz"))


def _discovery() -> Component:
    flags = {"kubeconfig": kubeconfig.file_for("prometheus"), "output": prometheus.TARGETS}
    return Component("kubernetes-discovery", _inside(binary("kubernetes-discovery"), flags))


def _prometheus() -> Component:
    flags = {
        "config.file": prometheus.FILE,
        "storage.tsdb.path": RUN / "prometheus",
        "storage.tsdb.retention.time": "2d",
        "web.listen-address": f"127.0.0.1:{prometheus.PORT}",
        "web.console.templates": prometheus.CONSOLES,
        "web.console.libraries": prometheus.CONSOLES,
    }
    probe = Probe(prometheus.PORT, "/-/ready")
    return Component("prometheus", _inside("prometheus", flags), probe)


def _serving(name: str) -> dict[str, object]:
    file = kubeconfig.file_for(name)
    return {
        "kubeconfig": file,
        "authentication-kubeconfig": file,
        "authorization-kubeconfig": file,
        "bind-address": "127.0.0.1",
        "tls-cert-file": certificate(name),
        "tls-private-key-file": key(name),
    }


def _inside(program: str, flags: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(netns.entering([program, *(f"--{name}={value}" for name, value in flags.items())]))
