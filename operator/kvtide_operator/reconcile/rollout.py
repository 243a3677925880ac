"""How workers are replaced, and why others cannot start: judged by what is free in the cluster."""

from dataclasses import replace

from kvtide_operator.api import names
from kvtide_operator.api.conditions import ConditionType, Reason
from kvtide_operator.api.spec import DeviceKind
from kvtide_operator.children.manifest import owned_by
from kvtide_operator.plan.record import Planned
from kvtide_operator.plan.room import free_devices, places, wanted_by
from kvtide_operator.reconcile.observed import Live, Observed, Surroundings
from kvtide_operator.reconcile.planning import present_intent
from kvtide_operator.reconcile.pods import PodView, Trouble

_NO_PLACE = (Reason.INSUFFICIENT_GPU, Reason.UNSCHEDULABLE)


def wants_room(observed: Observed) -> bool:
    """Whether this pass has to know what is free: a rollout begins, or a worker finds no device."""
    live = observed.child("Deployment", observed.resource.name)
    # What could not be planned at the last look begins no rollout: nothing is listed for it pass after pass.
    plannable = not any(
        condition.type is ConditionType.PLANNED
        and condition.status == "False"
        and condition.observed_generation == observed.resource.generation
        for condition in observed.resource.status.conditions or []
    )
    ours = live is not None and owned_by(live, observed.resource)
    begins = plannable and live is not None and ours and _intent(live) != _wanted(observed)
    return begins or any(pod.trouble and pod.trouble.reason is Reason.INSUFFICIENT_GPU for pod in observed.workers)


def surges(observed: Observed, surroundings: Surroundings, live: Live | None, intent: str, planned: Planned) -> bool:
    """Whether new pods may come before old ones go: there is room for all of them, and none that came waits for it.

    Decided when a rollout begins, and kept: the pod that comes first takes the room that was seen.
    """
    if live is None:
        return False
    if _intent(live) == intent:
        rolling = (live["spec"].get("strategy") or {}).get("rollingUpdate") or {}
        return bool(rolling.get("maxSurge") == 1) and not any(_waits(pod, intent) for pod in observed.workers)
    if surroundings.nodes is None or surroundings.claims is None:
        return False
    spec = observed.resource.spec
    device = spec.device.resource_name if spec.device.kind is DeviceKind.GPU else ""
    room = places(surroundings.nodes, surroundings.claims, spec.worker, wanted_by(planned.template), device)
    return room >= max(1, int(live["spec"].get("replicas", 1)))


def explained(troubles: tuple[Trouble, ...], observed: Observed, surroundings: Surroundings) -> tuple[Trouble, ...]:
    """The troubles, with what was asked for and what is free where a device is missing."""
    if surroundings.nodes is None or surroundings.claims is None:
        return troubles
    device = observed.resource.spec.device
    worker = observed.resource.spec.worker
    free = free_devices(surroundings.nodes, surroundings.claims, worker, device.resource_name)
    asked = f"a worker asks for {device.count} {device.resource_name}, of which {free}"
    return tuple(
        replace(trouble, message=f"{trouble.message} ({asked})")
        if trouble.reason is Reason.INSUFFICIENT_GPU
        else trouble
        for trouble in troubles
    )


def _intent(live: Live) -> str:
    labels = live["spec"]["template"]["metadata"].get("labels") or {}
    return str(labels.get(names.INTENT_LABEL, ""))


def _wanted(observed: Observed) -> str:
    intent, _ = present_intent(observed)
    return intent


def _waits(pod: PodView, intent: str) -> bool:
    return pod.intent == intent and pod.trouble is not None and pod.trouble.reason in _NO_PLACE
