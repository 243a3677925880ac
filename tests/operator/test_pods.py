"""What a pod's status says, in the words of the closed list. The JSON is what a kubelet 1.34 reports."""

from collections.abc import Callable
from typing import Any

import pytest

from kvtide_operator.api.conditions import Reason
from kvtide_operator.reconcile.pods import PodView

Json = dict[str, Any]


def waiting(reason: str, message: str = "", **more: Any) -> Json:
    state = {"waiting": {"reason": reason, "message": message}}
    return {"name": "worker", "image": "registry/worker:1", "ready": False, "state": state, **more}


def unschedulable(message: str) -> list[Json]:
    return [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}]


OOM = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
BUSY = {
    "terminated": {
        "reason": "Error",
        "exitCode": 3,
        "message": "GPUMemoryBusy: the plan needs 30.0 GiB, 2.00 GiB are free\n",
    }
}


@pytest.mark.parametrize(
    ("status", "reason", "words"),
    [
        ({"containerStatuses": [waiting("ErrImagePull", "not found")]}, Reason.IMAGE_PULL_ERROR, "registry/worker:1"),
        ({"containerStatuses": [waiting("ImagePullBackOff")]}, Reason.IMAGE_PULL_ERROR, "ImagePullBackOff"),
        (
            {"containerStatuses": [waiting("CreateContainerConfigError", 'secret "hf" not found')]},
            Reason.CONTAINER_START_ERROR,
            'secret "hf" not found',
        ),
        (
            {
                "containerStatuses": [
                    waiting(
                        "CrashLoopBackOff",
                        restartCount=4,
                        lastState={"terminated": {"exitCode": 1, "message": "no weights"}},
                    )
                ]
            },
            Reason.CONTAINER_CRASH_LOOP_BACK_OFF,
            "exit status 1, restarted 4 times: no weights",
        ),
        (
            {"containerStatuses": [waiting("CrashLoopBackOff", restartCount=2, lastState=OOM)]},
            Reason.CONTAINER_OOM_KILLED,
            "restarted 2 times",
        ),
        (
            {"conditions": unschedulable("0/3 nodes are available: 3 Insufficient nvidia.com/gpu.")},
            Reason.INSUFFICIENT_GPU,
            "3 Insufficient nvidia.com/gpu",
        ),
        (
            {"conditions": unschedulable("0/1 nodes are available: 1 Insufficient memory.")},
            Reason.UNSCHEDULABLE,
            "Insufficient memory",
        ),
        (
            {"containerStatuses": [waiting("CrashLoopBackOff", restartCount=3, lastState=BUSY)]},
            Reason.GPU_MEMORY_BUSY,
            "the plan needs 30.0 GiB, 2.00 GiB are free (restarted 3 times)",
        ),
        (
            {"containerStatuses": [{"ready": False, "restartCount": 0, "state": BUSY}]},
            Reason.GPU_MEMORY_BUSY,
            "2.00 GiB are free (restarted 0 times)",
        ),
        (  # started again, and waits again
            {"containerStatuses": [{"ready": False, "restartCount": 1, "state": {"running": {}}, "lastState": BUSY}]},
            Reason.GPU_MEMORY_BUSY,
            "(restarted 1 times)",
        ),
        ({"containerStatuses": [{"ready": True, "state": {"running": {}}, "lastState": BUSY}]}, None, ""),
        (  # a word of the closed list that no worker ends with
            {
                "containerStatuses": [
                    waiting(
                        "CrashLoopBackOff",
                        restartCount=1,
                        lastState={"terminated": {"exitCode": 3, "message": "Fits: nothing is wrong"}},
                    )
                ]
            },
            Reason.CONTAINER_CRASH_LOOP_BACK_OFF,
            "Fits: nothing is wrong",
        ),
        ({"containerStatuses": [waiting("ContainerCreating")]}, None, ""),
        ({"containerStatuses": [{"ready": True, "state": {"running": {}}, "lastState": OOM}]}, None, ""),
    ],
)
def test_trouble(make_pod: Callable[..., Json], status: Json, reason: Reason | None, words: str) -> None:
    trouble = PodView.parse(make_pod(ready=False, **status)).trouble
    if reason is None:
        assert trouble is None
    else:
        assert trouble is not None
        assert trouble.reason is reason
        assert words in trouble.message
        assert trouble.message.startswith("chat-a: ")


def test_a_terminating_pod(make_pod: Callable[..., Json]) -> None:
    pod = make_pod(intent="abc")
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    view = PodView.parse(pod)
    assert (view.terminating, view.intent, view.ip) == (True, "abc", "10.0.0.1")


@pytest.mark.parametrize(("says", "cost"), [("7", 7), ("-1", -1), ("", None), ("much", None)])
def test_a_deletion_cost_is_what_anybody_wrote(
    make_pod: Callable[..., dict[str, Any]], says: str, cost: int | None
) -> None:
    pod = make_pod()
    pod["metadata"]["annotations"] = {"controller.kubernetes.io/pod-deletion-cost": says}
    assert PodView.parse(pod).deletion_cost == cost
