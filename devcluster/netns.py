"""The network namespace that the node lives in, so that nothing touches the machine's own network.

    ┌ namespace ──────────────────────────────────────────────┐
    │ node 10.200.0.1 (eth0) ── uplink     pods 10.244.0.0/16 │
    │                                  services 10.96.0.0/16  │
    └─────────────────────────────────────────────────────────┘

Nothing leads out of it: a device stands in for the network card only because the kubelet and the proxy want an
address and a default route. Some kernels have no `dummy` device, so it is a pair of which both ends stay inside.
"""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from devcluster import mounts
from devcluster.paths import INSTANCE

PATH = Path("/run/netns") / INSTANCE
NODE_ADDRESS = "10.200.0.1"
POD_CIDR = "10.244.0.0/16"
SERVICE_CIDR = "10.96.0.0/16"
API_SERVICE_ADDRESS = "10.96.0.1"
DNS_SERVICE_ADDRESS = "10.96.0.10"

CLONE_NEWNET = 0x40000000


def create() -> None:
    """Make the namespace with its device and routes, if it is not there."""
    if PATH.exists():
        return
    _ip("netns", "add", INSTANCE)
    try:
        _furnish()
    except BaseException:
        # Half a network would pass for a whole one at the next start.
        delete()
        raise


def _furnish() -> None:
    for arguments in (
        "link set lo up",
        "link add eth0 type veth peer name uplink",
        f"address add {NODE_ADDRESS}/24 dev eth0",
        "link set uplink up",
        "link set eth0 up",
        "route add default via 10.200.0.254 dev eth0",
    ):
        _ip("-netns", INSTANCE, *arguments.split())
    with inside():
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def delete() -> None:
    """Remove the namespace; its devices, routes and iptables rules go with its last process."""
    if PATH.exists():
        _ip("netns", "delete", INSTANCE)
    if PATH.parent.exists() and not any(PATH.parent.iterdir()):
        # The first `ip netns add` of a machine mounts the folder over itself.
        mounts.unmount_below(PATH.parent)
        PATH.parent.rmdir()


def entering(command: Sequence[str]) -> list[str]:
    """The command, to run inside. Not `ip netns exec`: that hides /sys/fs/cgroup, which the kubelet needs."""
    return ["nsenter", f"--net={PATH}", *command]


@contextmanager
def inside() -> Iterator[None]:
    """The calling thread is in the namespace; sockets that it makes here stay there when it has left again."""
    with Path("/proc/thread-self/ns/net").open() as outside:
        join(PATH)
        try:
            yield
        finally:
            _setns(outside.fileno())


def connect(host: str, port: int, timeout_s: float) -> socket.socket:
    """A TCP connection from inside the namespace. Raises OSError like any other."""
    with inside():
        return socket.create_connection((host, port), timeout=timeout_s)


def join(namespace: Path) -> None:
    """Move the calling thread into a network namespace, for good. Raises OSError."""
    with namespace.open() as handle:
        _setns(handle.fileno())


def _setns(descriptor: int) -> None:
    # os.setns comes with Python 3.12.
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), f"setns: {os.strerror(ctypes.get_errno())}")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
