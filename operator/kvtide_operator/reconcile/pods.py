"""A worker pod as the decisions see it, read from the API server's JSON."""

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvtide_operator.api import names
from kvtide_operator.api.conditions import Reason

IMAGE_PULL_REASONS = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")
# What the kubelet says of a container that cannot even be created: a Secret, a ConfigMap or a mount is missing.
CREATE_REASONS = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
# Reasons that a worker's last words may begin with, before a colon.
SAID_REASONS = (Reason.GPU_MEMORY_BUSY,)


@dataclass(frozen=True)
class Trouble:
    """Why a pod does not do its work: a reason of the closed list, and the cluster's own words."""

    reason: Reason
    message: str


@dataclass(frozen=True)
class Ending:
    """How a pod's only container ended. `finished_at` in seconds since 1970."""

    exit_code: int
    message: str
    finished_at: float


@dataclass(frozen=True)
class PodView:
    """One pod. Times in seconds since 1970.

    created_at:     by the API server's clock
    deletion_cost:  what its annotation says, None without one
    oom_killed_at:  when a container of it was last killed for its memory, as far as the pod still says
    unready_since:  since when it is not ready, None while it is
    """

    name: str
    created_at: float
    ip: str | None
    ready: bool
    ready_since: float | None
    terminating: bool
    intent: str | None
    model: str | None
    deletion_cost: int | None
    trouble: Trouble | None
    ending: Ending | None
    oom_killed_at: float | None = None
    unready_since: float | None = None

    @classmethod
    def parse(cls, pod: Mapping[str, Any]) -> "PodView":
        """Reads a live pod."""
        metadata, status = pod["metadata"], pod.get("status") or {}
        labels = metadata.get("labels") or {}
        cost = (metadata.get("annotations") or {}).get(names.DELETION_COST_ANNOTATION)
        readiness = _condition(status, "Ready")
        ready, since = readiness.get("status") == "True", readiness.get("lastTransitionTime")
        return cls(
            name=metadata["name"],
            created_at=seconds(metadata["creationTimestamp"]),
            ip=status.get("podIP"),
            ready=ready,
            ready_since=seconds(since) if ready and since else None,
            terminating="deletionTimestamp" in metadata,
            intent=labels.get(names.INTENT_LABEL),
            model=labels.get(names.MODEL_LABEL),
            deletion_cost=_number(cost),
            trouble=_trouble(metadata["name"], status),
            ending=_ending(status),
            oom_killed_at=_oom_killed_at(status),
            unready_since=None if ready else seconds(since or metadata["creationTimestamp"]),
        )


def _number(text: str | None) -> int | None:
    """Anybody may write an annotation, and anything in it."""
    try:
        return int(text) if text else None
    except ValueError:
        return None


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    return next((c for c in status.get("conditions") or [] if c["type"] == kind), {})


def _trouble(name: str, status: Mapping[str, Any]) -> Trouble | None:
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        words = scheduled.get("message") or "no node fits"
        gpu = "Insufficient " in words and "gpu" in words.lower()
        return Trouble(Reason.INSUFFICIENT_GPU if gpu else Reason.UNSCHEDULABLE, f"{name}: {words}")
    for container in status.get("containerStatuses") or []:
        found = _container_trouble(name, container)
        if found is not None:
            return found
    return None


def _container_trouble(name: str, container: Mapping[str, Any]) -> Trouble | None:
    waiting = (container.get("state") or {}).get("waiting") or {}
    reason, words = waiting.get("reason", ""), waiting.get("message") or ""
    if reason in IMAGE_PULL_REASONS:
        return Trouble(Reason.IMAGE_PULL_ERROR, f"{name}: {container.get('image', '')}: {words or reason}")
    if reason in CREATE_REASONS:
        return Trouble(Reason.CONTAINER_START_ERROR, f"{name}: {words or reason}")
    last = (container.get("lastState") or {}).get("terminated") or {}
    now = (container.get("state") or {}).get("terminated") or {}
    if not container.get("ready") and "OOMKilled" in (now.get("reason"), last.get("reason")):
        times = container.get("restartCount", 0)
        return Trouble(Reason.CONTAINER_OOM_KILLED, f"{name}: killed at its memory limit, restarted {times} times")
    # From the first time on: a worker that waits for memory once more says nothing else for minutes.
    for words in () if container.get("ready") else (now.get("message"), last.get("message")):
        said_reason, _, said = (words or "").strip().partition(": ")
        if said and said_reason in SAID_REASONS:
            times = container.get("restartCount", 0)
            return Trouble(Reason(said_reason), f"{name}: {said} (restarted {times} times)")
    if reason == "CrashLoopBackOff":
        said = (last.get("message") or "").strip()
        code = last.get("exitCode", "unknown")
        detail = f"exit status {code}, restarted {container.get('restartCount', 0)} times"
        return Trouble(Reason.CONTAINER_CRASH_LOOP_BACK_OFF, f"{name}: {detail}" + (f": {said}" if said else ""))
    return None


def _oom_killed_at(status: Mapping[str, Any]) -> float | None:
    endings = [
        (container.get(state) or {}).get("terminated") or {}
        for container in status.get("containerStatuses") or []
        for state in ("state", "lastState")
    ]
    times = [seconds(ended["finishedAt"]) for ended in endings if _oom_killed(ended)]
    return max(times, default=None)


def _oom_killed(ended: Mapping[str, Any]) -> bool:
    return ended.get("reason") == "OOMKilled" and bool(ended.get("finishedAt"))


def _ending(status: Mapping[str, Any]) -> Ending | None:
    for container in status.get("containerStatuses") or []:
        ended = (container.get("state") or {}).get("terminated")
        if ended:
            return Ending(
                exit_code=ended.get("exitCode", -1),
                message=(ended.get("message") or ended.get("reason") or "").strip(),
                finished_at=seconds(ended["finishedAt"]) if ended.get("finishedAt") else 0.0,
            )
    if status.get("phase") == "Failed":
        return Ending(-1, status.get("message") or status.get("reason") or "the pod failed", 0.0)
    return None


def seconds(time: str) -> float:
    """Seconds since 1970 of a Kubernetes time."""
    return datetime.datetime.fromisoformat(time.replace("Z", "+00:00")).timestamp()


def timestamp(moment: float) -> str:
    """A Kubernetes time, to the second."""
    return datetime.datetime.fromtimestamp(moment, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
