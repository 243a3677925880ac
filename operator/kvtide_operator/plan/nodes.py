"""Nodes as a plan sees them, and what keeps a worker from running on one: as the scheduler judges it, free or not."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kvtide_operator.api.worker import WorkerSpec
from kvtide_operator.plan.dra import OfferedDevice, only_offered
from kvtide_sizing.devices.device import Device
from kvtide_sizing.devices.node import device_of_node
from kvtide_sizing.errors import UnknownDevice

# So many nodes are named in a message; of the others only the number is said.
NAMED = 3
# A PreferNoSchedule taint keeps nobody away.
_REPELLING = ("NoSchedule", "NoExecute")


@dataclass(frozen=True)
class Taint:
    """What a pod must tolerate to run there."""

    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


@dataclass(frozen=True)
class NodeDevices:
    """A node.

    allocatable:  amounts by resource name, as the API server writes them
    ready:        its kubelet says so; of one that does not, what it has to allocate is what it had
    offered:      devices that it offers through DRA, whether it has them allocatable too or not
    """

    name: str
    labels: Mapping[str, str]
    allocatable: Mapping[str, str]
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    ready: bool = True
    offered: tuple[OfferedDevice, ...] = ()

    @classmethod
    def parse(cls, node: Mapping[str, Any]) -> "NodeDevices":
        """Reads a live node."""
        metadata, spec, status = node["metadata"], node.get("spec") or {}, node.get("status") or {}
        return cls(
            name=metadata["name"],
            labels=metadata.get("labels") or {},
            allocatable=status.get("allocatable") or {},
            taints=tuple(
                Taint(taint["key"], taint.get("value") or "", taint["effect"]) for taint in spec.get("taints") or []
            ),
            unschedulable=bool(spec.get("unschedulable")),
            ready=any(
                condition["type"] == "Ready" and condition["status"] == "True"
                for condition in status.get("conditions") or []
            ),
        )

    def devices(self, resource_name: str) -> int:
        """How many devices of this kind it has for pods that ask by that name, those in use included."""
        amount = self.allocatable.get(resource_name, "0")
        return int(amount) if amount.isdigit() else 0

    def device(self, resource_name: str) -> Device | None:
        """One of its devices of this kind, None where it has none for pods that ask by that name.

        Where its labels do not tell the memory, what it offers through DRA does: the least of that kind. Raises
        UnknownDevice where neither does.
        """
        try:
            return device_of_node(self.labels, self.allocatable, resource_name)
        except UnknownDevice:
            told = [one for one in self.offered if one.resource_name == resource_name]
            if not told:
                raise
            return min(told, key=lambda one: one.memory_bytes).device()

    def unasked(self, resource_name: str) -> str:
        """What it offers of this kind through DRA alone, which pods that ask by that name do not get; or empty."""
        return only_offered(self.offered, resource_name) if self.devices(resource_name) == 0 else ""


def through_dra_alone(nodes: Iterable[NodeDevices], resource_name: str) -> str:
    """What nodes offer of this kind through DRA alone, and what would let pods have it; empty where none does."""
    found = [f"{node.name} has {what}" for node in nodes if (what := node.unasked(resource_name))]
    if not found:
        return ""
    more = f" and {len(found) - NAMED} more nodes" if len(found) > NAMED else ""
    return (
        f"{', '.join(found[:NAMED])}{more} through DRA alone, and workers ask by the name {resource_name}, not by"
        f" ResourceClaims: run the device plugin there, or give the DeviceClass gpu.nvidia.com the extendedResourceName"
        f" {resource_name} (Kubernetes 1.34, feature gate DRAExtendedResource) and write device.memory"
    )


def obstacle(node: NodeDevices, worker: WorkerSpec, resource_name: str, count: int) -> str | None:
    """Why the scheduler would never place a worker of `count` devices on this node, None where it might.

    Looks at what the pod asks for by worker.nodeSelector, the required part of the node affinity and tolerations;
    not at what is free, which changes by the minute.
    """
    if not node.ready:
        return "is not ready"
    if node.unschedulable:
        return "is cordoned"
    if node.devices(resource_name) < count:
        return f"has {node.devices(resource_name)}, a worker takes {count}"
    for key, value in (worker.node_selector or {}).items():
        if node.labels.get(key) != value:
            return f"has not the label {key}={value} of worker.nodeSelector"
    if not _has_affinity(node, worker.affinity or {}):
        return "is not what worker.affinity asks for"
    for taint in node.taints:
        if taint.effect in _REPELLING and not _tolerated(taint, worker.tolerations or [], resource_name):
            return f"has the taint {taint}, which worker.tolerations do not tolerate"
    return None


def _tolerated(taint: Taint, tolerations: Iterable[Mapping[str, Any]], resource_name: str) -> bool:
    """As https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/ has it."""
    # Where GPU nodes are tainted with the resource's own name, the admission plugin ExtendedResourceToleration gives
    # pods that ask for the resource this toleration.
    if taint.key == resource_name:
        return True
    return any(_tolerates(toleration, taint) for toleration in tolerations)


def _tolerates(toleration: Mapping[str, Any], taint: Taint) -> bool:
    if toleration.get("effect") not in (None, "", taint.effect):
        return False
    key = toleration.get("key")
    if toleration.get("operator") == "Exists":
        return key in (None, "", taint.key)
    return toleration.get("operator") in (None, "", "Equal") and (key, toleration.get("value") or "") == (
        taint.key,
        taint.value,
    )


def _has_affinity(node: NodeDevices, affinity: Mapping[str, Any]) -> bool:
    """Whether one of the required node selector terms matches; all of a term's expressions must."""
    required = (affinity.get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    if not required:
        return True
    return any(_matches(node, term) for term in required.get("nodeSelectorTerms") or [])


def _matches(node: NodeDevices, term: Mapping[str, Any]) -> bool:
    labels, fields = term.get("matchExpressions") or [], term.get("matchFields") or []
    named = {"metadata.name": node.name}
    # A term without expressions matches no node.
    return bool(labels or fields) and all(
        _holds(expression, found) for group, found in ((labels, node.labels), (fields, named)) for expression in group
    )


def _holds(expression: Mapping[str, Any], found: Mapping[str, str]) -> bool:
    value, wanted = found.get(expression["key"]), expression.get("values") or []
    match expression["operator"]:
        case "In":
            return value in wanted
        case "NotIn":
            return value not in wanted
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt":
            return _number(value) > _number(wanted[0])
        case "Lt":
            return _number(value) < _number(wanted[0])
    return False


def _number(text: str | None) -> float:
    """A label as Gt and Lt compare it; NaN, which is neither above nor below anything, where it is no number."""
    try:
        return float(int(text or ""))
    except ValueError:
        return float("nan")
