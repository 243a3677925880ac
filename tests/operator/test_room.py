"""What is free in a cluster, and what follows from it: whether a rollout may surge, and what a missing device costs."""

import copy
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from kvtide_operator.api.conditions import ConditionType
from kvtide_operator.api.resource import LLMDeployment
from kvtide_operator.api.worker import WorkerSpec
from kvtide_operator.plan.intent import intent_hash
from kvtide_operator.plan.nodes import NodeDevices
from kvtide_operator.plan.room import Claim, free_devices, places
from kvtide_operator.reconcile.observed import Observed, Surroundings
from kvtide_operator.reconcile.reconcile import reconcile
from kvtide_operator.reconcile.rollout import wants_room

Json = dict[str, Any]
Make = Callable[..., LLMDeployment]
MakePod = Callable[..., Json]
See = Callable[..., Observed]
GPU = "nvidia.com/gpu"
# As GPU feature discovery labels them; MiB as nvidia-smi shows them: 80 GiB and 22.5 GiB.
A100 = {"nvidia.com/gpu.memory": "81920", "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}
L4 = {"nvidia.com/gpu.memory": "23034", "nvidia.com/gpu.product": "NVIDIA-L4"}


def pod(node: str | None, *requests: Json, init: list[Json] | None = None, **more: Any) -> Json:
    containers = [{"resources": {"requests": each}} for each in requests]
    spec = {"containers": containers, "initContainers": init or [], **({"nodeName": node} if node else {})}
    return {"spec": spec | more.pop("spec", {}), "status": {"phase": "Running"} | more}


def node(name: str, gpus: int = 0, labels: Json | None = None, memory: str = "16Gi", **more: Any) -> NodeDevices:
    allocatable = {"cpu": "8", "memory": memory, "pods": "110", GPU: str(gpus)}
    return NodeDevices(name, {"kubernetes.io/hostname": name, **(labels or {})}, allocatable, **more)


@pytest.mark.parametrize(
    ("live", "amounts"),
    [
        (pod(None, {"cpu": "1"}), None),  # no node yet
        (pod("a", {"cpu": "1"}, phase="Succeeded"), None),
        (pod("a", {"cpu": "500m", "memory": "1Gi"}, {"cpu": "250m"}), {"cpu": "0.75", "memory": "1073741824"}),
        # An init container runs alone, before the others: the larger of the two sides counts, resource by resource.
        (
            pod("a", {"cpu": "1", GPU: "1"}, init=[{"resources": {"requests": {"cpu": "3", GPU: "1"}}}]),
            {"cpu": "3", GPU: "1"},
        ),
        # A side-car stays.
        (
            pod("a", {"cpu": "1"}, init=[{"restartPolicy": "Always", "resources": {"requests": {"cpu": "2"}}}]),
            {"cpu": "3"},
        ),
        (pod("a", {"cpu": "1"}, spec={"overhead": {"cpu": "250m"}}), {"cpu": "1.25"}),
    ],
)
def test_what_a_pod_takes(live: Json, amounts: dict[str, str] | None) -> None:
    claim = Claim.parse(live)
    if amounts is None:
        assert claim is None
    else:
        assert claim is not None
        assert claim.amounts == {"pods": 1, **{name: Decimal(value) for name, value in amounts.items()}}


def test_a_limit_alone_is_the_request_too() -> None:
    limited = {"spec": {"nodeName": "a", "containers": [{"resources": {"limits": {GPU: "2"}}}]}}
    claim = Claim.parse(limited)
    assert claim is not None
    assert claim.amounts[GPU] == 2


def claims(*live: Json) -> list[Claim]:
    return [claim for each in live if (claim := Claim.parse(each)) is not None]


@pytest.mark.parametrize(
    ("memory", "taken", "number"),
    [
        ("16Gi", [], 16),
        ("16Gi", ["10Gi"], 6),
        ("16Gi", ["10Gi", "5632Mi"], 0),  # 512 Mi are left
        ("500Mi", [], 0),
    ],
)
def test_how_many_more_find_a_place(memory: str, taken: list[str], number: int) -> None:
    wanted = {"memory": Decimal(2**30), "pods": Decimal(1)}
    used = claims(*(pod("a", {"memory": each}) for each in taken))
    assert places([node("a", memory=memory)], used, WorkerSpec(), wanted, "") == number
    # What is on another node, or on one that takes no worker, is nobody's room.
    assert places([node("a", memory=memory, unschedulable=True)], used, WorkerSpec(), wanted, "") == 0


def test_free_devices_are_told_size_by_size() -> None:
    nodes = [node("big", 4, A100), node("small-1", 1, L4), node("small-2", 1, L4), node("plain")]
    used = claims(*(pod("big", {GPU: "1"}) for _ in range(4)), pod("small-1", {GPU: "1"}))
    told = free_devices(nodes, used, WorkerSpec(), GPU)
    assert told == "1 of 2 with 22.5 GiB free, 0 of 4 with 80.0 GiB free"
    pinned = WorkerSpec(node_selector={"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"})
    assert free_devices(nodes, used, pinned, GPU) == (
        "0 of 4 with 80.0 GiB free; not to be had: 1 on small-2, which has not the label"
        " nvidia.com/gpu.product=NVIDIA-A100-SXM4-80GB of worker.nodeSelector"
    )


def deployment_of(children: list[Json]) -> Json:
    return next(child for child in children if child["kind"] == "Deployment")


SURGE = {"maxSurge": 1, "maxUnavailable": 0}
ONE_FOR_ONE = {"maxSurge": 0, "maxUnavailable": 1}


@pytest.mark.parametrize(
    ("replicas", "free_gib", "rolling"),
    [
        # workers of 2 GiB: room for all of the new ones beside the old ones, or one for one
        (1, 2, SURGE),
        (1, 1, ONE_FOR_ONE),
        (2, 4, SURGE),
        (2, 3, ONE_FOR_ONE),
        (1, None, ONE_FOR_ONE),  # nobody may look
    ],
)
def test_a_rollout_surges_only_into_room_that_is_there(
    make_resource: Make, make_pod: MakePod, observe: See, surroundings: Surroundings, now: float, first: list[Json],
    replicas: int, free_gib: int | None, rolling: Json,
) -> None:  # fmt: skip
    live = copy.deepcopy(first)
    deployment_of(live)["spec"]["replicas"] = replicas
    changed = make_resource(workload={"maxContextTokens": 1024})
    pods = [make_pod(f"chat-{at}", intent=intent_hash(make_resource())) for at in range(replicas)]
    seen = observe(changed, live, pods)
    assert wants_room(seen)
    around = surroundings
    if free_gib is not None:
        taken = claims(pod("a", {"memory": f"{16 - free_gib}Gi"}))
        around = replace(surroundings, nodes=(node("a"),), claims=tuple(taken))
    written = deployment_of(list(reconcile(seen, around, now).apply))
    assert written["spec"]["strategy"]["rollingUpdate"] == rolling

    # In the next pass the first new pod has taken the room: what was decided stays, unless that pod waits for a place.
    others = [child for child in reconcile(seen, around, now).apply if child["kind"] != "Deployment"]
    rest = [child for child in live if child["kind"] not in {"Deployment", *(child["kind"] for child in others)}]
    running = [*rest, *others, written]
    assert not wants_room(observe(changed, running, pods))
    assert reconcile(observe(changed, running, pods), surroundings, now).apply == ()
    waits = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "1 Insufficient memory."}
    stuck = [*pods, make_pod("chat-new", ready=False, intent=intent_hash(changed), conditions=[waits])]
    after = list(reconcile(observe(changed, running, stuck), surroundings, now).apply)
    if rolling == SURGE:
        assert deployment_of(after)["spec"]["strategy"]["rollingUpdate"] == ONE_FOR_ONE
    else:
        assert after == []


def test_what_cannot_be_planned_lists_no_pods(
    make_resource: Make, observe: See, surroundings: Surroundings, now: float, first: list[Json]
) -> None:
    broken = {"workload": {"maxContextTokens": 999_999}}
    seen = observe(make_resource(**broken), first)
    assert wants_room(seen)
    told = reconcile(seen, surroundings, now).status
    assert not wants_room(observe(make_resource(status=told.to_json(), **broken), first))


def test_a_missing_device_is_told_with_what_is_asked_for_and_what_is_free(
    make_resource: Make, make_pod: MakePod, observe: See, surroundings: Surroundings, now: float
) -> None:
    resource = make_resource(device={"kind": "GPU", "memory": "20Gi"})
    children = list(reconcile(observe(resource), surroundings, now).apply)
    words = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    waits = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": words}
    seen = observe(resource, children, [make_pod(ready=False, intent=intent_hash(resource), conditions=[waits])])
    assert wants_room(seen)
    full = claims(pod("a", {GPU: "1"}))
    around = replace(surroundings, nodes=(node("a", 1, L4),), claims=tuple(full))
    status = reconcile(seen, around, now).status
    ready = next(c for c in status.conditions or [] if c.type is ConditionType.READY)
    assert (ready.status, ready.reason) == ("False", "InsufficientGPU")
    assert words in ready.message
    assert "a worker asks for 1 nvidia.com/gpu, of which 0 of 1 with 22.5 GiB free" in ready.message
