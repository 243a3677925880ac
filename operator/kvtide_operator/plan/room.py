"""What is free: what nodes have to allocate less what the pods on them ask for, as the scheduler counts it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from kvtide_operator.api.worker import WorkerSpec
from kvtide_operator.plan.amount import amount
from kvtide_operator.plan.nodes import NAMED, NodeDevices, obstacle, through_dra_alone
from kvtide_sizing.errors import UnknownDevice
from kvtide_sizing.quantity import format_bytes

Amounts = Mapping[str, Decimal]
_ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True)
class Claim:
    """What a pod on a node keeps from others, by resource name."""

    node: str
    amounts: Amounts

    @classmethod
    def parse(cls, pod: Mapping[str, Any]) -> "Claim | None":
        """Reads a live pod; None of one that is on no node, or has ended.

        As https://kubernetes.io/docs/concepts/workloads/pods/init-containers/#resource-sharing-within-containers has
        it: containers and side-cars together, or the largest other init container where that is more.
        """
        spec, phase = pod.get("spec") or {}, (pod.get("status") or {}).get("phase")
        if not spec.get("nodeName") or phase in _ENDED:
            return None
        running: dict[str, Decimal] = {}
        for container in spec.get("containers") or []:
            _add(running, _requests(container))
        starting: dict[str, Decimal] = {}
        for container in spec.get("initContainers") or []:
            requests = _requests(container)
            if container.get("restartPolicy") == "Always":
                _add(running, requests)
            for name, value in requests.items():
                starting[name] = max(starting.get(name, Decimal(0)), value)
        needed = {
            name: max(running.get(name, Decimal(0)), starting.get(name, Decimal(0))) for name in running | starting
        }
        _add(needed, _amounts(spec.get("overhead") or {}))
        return cls(spec["nodeName"], {**needed, "pods": Decimal(1)})


def wanted_by(template: Mapping[str, Any]) -> dict[str, Decimal]:
    """What one pod of this template asks a node for."""
    wanted: dict[str, Decimal] = {"pods": Decimal(1)}
    for container in template["spec"]["containers"]:
        _add(wanted, _requests(container))
    return wanted


def places(
    nodes: Sequence[NodeDevices], claims: Iterable[Claim], worker: WorkerSpec, wanted: Amounts, resource_name: str
) -> int:
    """How many more workers would find a node now, by what is free and by what `obstacle` looks at."""
    free = free_amounts(nodes, claims)
    open_nodes = [node for node in nodes if obstacle(node, worker, resource_name, 0) is None]
    return sum(_times(free[node.name], wanted) for node in open_nodes)


def free_amounts(nodes: Iterable[NodeDevices], claims: Iterable[Claim]) -> dict[str, dict[str, Decimal]]:
    """What each node has left, by its name and the resource's."""
    free = {node.name: _amounts(node.allocatable) for node in nodes}
    for claim in claims:
        left = free.get(claim.node)
        for name, value in claim.amounts.items() if left is not None else ():
            assert left is not None
            left[name] = left.get(name, Decimal(0)) - value
    return free


def free_devices(nodes: Sequence[NodeDevices], claims: Iterable[Claim], worker: WorkerSpec, resource_name: str) -> str:
    """How many devices are free, size by size: '0 of 8 with 80.0 GiB free, 1 of 4 with 24.0 GiB free'.

    Those on nodes that would take no worker are counted apart, with the reason.
    """
    free = free_amounts(nodes, claims)
    sizes: dict[tuple[int, str], list[int]] = {}
    closed = []
    for node in nodes:
        having = node.devices(resource_name)
        left = max(0, int(free[node.name].get(resource_name, Decimal(0))))
        if not having:
            continue
        why = obstacle(node, worker, resource_name, 0)
        if why is None:
            count = sizes.setdefault(_size(node, resource_name), [0, 0])
            count[0], count[1] = count[0] + left, count[1] + having
        elif left:
            closed.append(f"{left} on {node.name}, which {why}")
    told = [f"{left} of {having} with {size} free" for (_, size), (left, having) in sorted(sizes.items())]
    if not told:
        told = [f"no node that would take a worker has {resource_name}"]
    more = f" and {len(closed) - NAMED} more nodes" if len(closed) > NAMED else ""
    not_had = f"; not to be had: {', '.join(closed[:NAMED])}{more}" if closed else ""
    offered = through_dra_alone(nodes, resource_name)
    return ", ".join(told) + not_had + (f"; {offered}" if offered else "")


def _size(node: NodeDevices, resource_name: str) -> tuple[int, str]:
    try:
        device = node.device(resource_name)
    except UnknownDevice:
        device = None
    return (device.memory_bytes, format_bytes(device.memory_bytes)) if device else (0, "memory that no label tells")


def _times(free: Amounts, wanted: Amounts) -> int:
    counts = (int(free.get(name, Decimal(0)) // value) for name, value in wanted.items() if value > 0)
    return max(0, min(counts, default=0))


def _requests(container: Mapping[str, Any]) -> dict[str, Decimal]:
    """Where only a limit is given, it is the request too."""
    resources = container.get("resources") or {}
    return _amounts({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def _amounts(said: Mapping[str, Any]) -> dict[str, Decimal]:
    return {name: found for name, value in said.items() if (found := amount(value)) is not None}


def _add(into: dict[str, Decimal], more: Amounts) -> None:
    for name, value in more.items():
        into[name] = into.get(name, Decimal(0)) + value
