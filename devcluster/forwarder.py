"""Ports on 127.0.0.1 that lead into the cluster: the API server, Prometheus, and any Service."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Mapping
from typing import Any

from devcluster import netns, process
from devcluster.kubectl import kubectl
from devcluster.state import Forward, State


def open_port(wanted: int) -> socket.socket:
    """Listen on a port of 127.0.0.1, and of no other address: the wanted one, or any other where that is taken."""
    for port in (wanted, 0):
        listener = socket.socket()
        # A port whose last connections are only just closed is free.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            listener.close()
            continue
        listener.listen(1024)
        return listener
    raise RuntimeError("no free port on 127.0.0.1")


def ensure(state: State, name: str, address: str, wanted_port: int) -> Forward:
    """A running forward of that name to HOST:PORT inside; the one that is there, where it still leads there."""
    present = state.forwards.get(name)
    if present:
        if present.address == address and present.process.alive:
            return present
        process.stop([present.process])
        wanted_port = present.port
    host, _, port = address.rpartition(":")
    with open_port(wanted_port) as listener:
        descriptor = listener.fileno()
        command = [sys.executable, "-m", "devcluster.relay", str(descriptor), str(netns.PATH), host, port]
        started = process.start(f"forward-{name.replace('/', '-')}", command, pass_fds=[descriptor])
        state.forwards[name] = Forward(listener.getsockname()[1], address, started)
    state.save()
    return state.forwards[name]


def forward_service(state: State, target: str, wanted_port: int) -> Forward:
    """Forward to a Service, given as NAMESPACE/SERVICE:PORT where PORT is a number or a name.

    Raises ValueError for a target of another form, RuntimeError where the Service or the port is not there.
    """
    namespace, _, rest = target.partition("/")
    service, _, port = rest.partition(":")
    if not (namespace and service and port):
        raise ValueError(f"{target!r} is not NAMESPACE/SERVICE:PORT, as in default/chat:80")
    found = json.loads(kubectl("get", "service", service, "--namespace", namespace, "--output", "json"))
    address = service_address(found, port)
    return ensure(state, target, address, wanted_port)


def service_address(service: Mapping[str, Any], port: str) -> str:
    """CLUSTER-IP:PORT of a Service's port, by number or name. Raises RuntimeError, saying which there are."""
    spec = service["spec"]
    if spec.get("clusterIP") in (None, "", "None"):
        raise RuntimeError("the Service is headless: it has no address to forward to; forward to one with a ClusterIP")
    for entry in spec["ports"]:
        if port in (str(entry["port"]), entry.get("name")):
            return f"{spec['clusterIP']}:{entry['port']}"
    there = ", ".join(f"{entry['port']} ({entry.get('name', 'unnamed')})" for entry in spec["ports"])
    raise RuntimeError(f"the Service has no port {port}; it has {there}")


def close(state: State, name: str) -> None:
    """End a forward. Raises RuntimeError where there is none of that name."""
    if name not in state.forwards:
        raise RuntimeError(f"no forward {name}; there are: {', '.join(state.forwards) or 'none'}")
    process.stop([state.forwards.pop(name).process])
    state.save()
