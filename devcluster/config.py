"""The configuration files of the node's daemons, rendered from constants: no machine is asked, nothing is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from devcluster import certificates, kubeconfig, netns
from devcluster.paths import CONTAINERD_ROOT, CONTAINERD_SOCKET, INSTANCE, RUN

PAUSE_IMAGE = "docker.io/kvtide/pause:dev"
CNI_PLUGINS = "/usr/lib/cni"
KUBELET_ROOT = RUN / "kubelet"

CONTAINERD_FILE = RUN / "containerd.toml"
CNI_FILE = RUN / "cni" / "net.d" / "10-pods.conflist"
KUBELET_FILE = RUN / "kubelet.yaml"
KUBE_PROXY_FILE = RUN / "kube-proxy.yaml"
RESOLV_CONF = RUN / "resolv.conf"


def files() -> dict[Path, str]:
    """Every file with its content."""
    return {
        CONTAINERD_FILE: containerd(),
        CNI_FILE: cni(),
        KUBELET_FILE: kubelet(),
        KUBE_PROXY_FILE: kube_proxy(),
        # No server: who asks the machine's own DNS from the node's network would wait for nothing.
        RESOLV_CONF: "options timeout:1 attempts:1\n",
    }


def containerd() -> str:
    """containerd's configuration (its own format, TOML), version 2."""
    return f"""\
version = 2
root = "{CONTAINERD_ROOT}"
state = "{RUN}/containerd"
# These keep files of their own outside root and state, or need what few machines have.
disabled_plugins = [
  "io.containerd.internal.v1.opt",
  "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs",
]

[grpc]
  address = "{CONTAINERD_SOCKET}"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  # Without CAP_SYS_RESOURCE nobody may lower the score, and runc dies trying.
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  stream_server_address = "127.0.0.1"

  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{CNI_PLUGINS}"
    conf_dir = "{CNI_FILE.parent}"

  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
      Root = "{RUN}/runc"
"""


def cni() -> str:
    """The pods' network: a link and a route of its own for each.

    A bridge would carry answers between two pods past iptables, unless the kernel was told to filter bridges for
    the whole machine; and then a Service's address would never be translated back.
    """
    plugins: list[dict[str, Any]] = [
        {
            "type": "ptp",
            "ipam": {
                "type": "host-local",
                "dataDir": str(RUN / "cni" / "addresses"),
                "ranges": [[{"subnet": netns.POD_CIDR}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        },
        {"type": "portmap", "capabilities": {"portMappings": True}},
    ]
    return json.dumps({"cniVersion": "1.0.0", "name": INSTANCE, "plugins": plugins}, indent=2)


def kubelet() -> str:
    """The kubelet's KubeletConfiguration: it limits pods as anywhere, but never evicts for the sake of a full disk."""
    config = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": netns.NODE_ADDRESS,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(certificates.certificate("cluster-ca"))},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(certificates.certificate("kubelet")),
        "tlsPrivateKeyFile": str(certificates.key("kubelet")),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{INSTANCE}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "enforceNodeAllocatable": [],
        "clusterDNS": [netns.DNS_SERVICE_ADDRESS],
        "clusterDomain": "cluster.local",
        "resolvConf": str(RESOLV_CONF),
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "containerLogMaxSize": "10Mi",
        "containerLogMaxFiles": 2,
        # 100 means never: images here come from no registry, and one that is collected cannot be pulled again.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "0%",
            "nodefs.inodesFree": "0%",
            "imagefs.available": "0%",
            "imagefs.inodesFree": "0%",
        },
        "oomScoreAdj": 0,
        "registerNode": True,
        "serializeImagePulls": False,
        # A changed ConfigMap reaches the pods that mount it within ten seconds; the default is a minute.
        "syncFrequency": "10s",
        "volumePluginDir": str(RUN / "kubelet" / "volume-plugins"),
    }
    return yaml.safe_dump(config, sort_keys=False)


def kube_proxy() -> str:
    """The proxy's KubeProxyConfiguration. Zeros leave the connection table alone: it belongs to the whole machine."""
    config = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "clusterCIDR": netns.POD_CIDR,
        "clientConnection": {"kubeconfig": str(kubeconfig.file_for("kube-proxy"))},
        "hostnameOverride": certificates.NODE,
        "oomScoreAdj": 0,
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },
    }
    return yaml.safe_dump(config, sort_keys=False)
