"""A simulated scheduler and kubelet: binds every worker pod, starts a simulated worker for it, says that it runs."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import time
from dataclasses import dataclass, field
from typing import Any

from bench.operator_size.client import MERGE, PODS, Api, Json, Refused
from kvtide_operator.api import names
from kvtide_operator.reconcile.pods import timestamp

NODES = 10
AT_ONCE = 16


def address(number: int) -> str:
    """The loopback address of the worker with this number: not those that anything else uses, nor another run."""
    return f"127.{100 + os.getpid() % 100}.{1 + number // 250 % 250}.{1 + number % 250}"


@dataclass
class Kubelet:
    """The pods that it runs, by name, with their addresses.

    workers: the process of `bench.operator_size.workers`
    idle:    what a worker says of itself that does nothing, but for its name
    """

    api: Api
    workers: subprocess.Popen[bytes]
    idle: Json
    placed: dict[str, str] = field(default_factory=dict)
    pods_of: dict[str, set[str]] = field(default_factory=dict)
    ready: int = 0
    _starts: dict[str, float] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _queue: asyncio.Queue[Json] = field(default_factory=asyncio.Queue)

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch())
            for _ in range(AT_ONCE):
                group.create_task(self._work())

    def say(self, pod: str, owner: str, **parts: Json) -> None:
        """Has the worker of a pod say that it is idle, but for these fields of `requests`, `kv` and so on."""
        state: Json = {**self.idle, "modelName": owner, "startedAt": self._starts.setdefault(pod, time.time())}
        for part, values in parts.items():
            state[part] = {**state[part], **values}
        self._tell({"ip": self.placed[pod], "state": state})

    def _tell(self, line: Json) -> None:
        assert self.workers.stdin is not None
        self.workers.stdin.write(json.dumps(line).encode() + b"\n")
        self.workers.stdin.flush()

    async def _watch(self) -> None:
        async for event in self.api.watch(PODS, names.NAME_LABEL):
            if event["type"] in ("ADDED", "MODIFIED"):
                self._queue.put_nowait(event["object"])

    async def _work(self) -> None:
        while True:
            pod = await self._queue.get()
            try:
                await self._handle(pod)
            except Refused as error:
                if error.status not in (404, 409):
                    raise

    async def _handle(self, pod: Json) -> None:
        metadata = pod["metadata"]
        name, owner = metadata["name"], metadata["labels"][names.NAME_LABEL]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{name}"
        if "deletionTimestamp" in metadata:
            ip = self.placed.pop(name, None)
            if ip is not None:
                self.ready -= 1
                self.pods_of[owner].discard(name)
                self._starts.pop(name, None)
                self._tell({"ip": ip})
                await self.api.call("DELETE", f"{path}?gracePeriodSeconds=0")
        elif name not in self.placed:
            number = next(self._numbers)
            self.placed[name] = address(number)
            self.pods_of.setdefault(owner, set()).add(name)
            self.say(name, owner)
            target = {"apiVersion": "v1", "kind": "Node", "name": f"node-{number % NODES}"}
            await self.api.call("POST", f"{path}/binding", {"metadata": {"name": name}, "target": target})
            await self.api.call("PATCH", f"{path}/status", {"status": _running(pod, self.placed[name])}, MERGE)
            self.ready += 1


def _running(pod: Json, ip: str) -> Json:
    now = timestamp(time.time())
    (container,) = pod["spec"]["containers"]
    kinds = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    status: dict[str, Any] = {
        "phase": "Running",
        "conditions": [{"type": kind, "status": "True", "lastTransitionTime": now} for kind in kinds],
        "hostIP": "10.0.0.1",
        "podIP": ip,
        "podIPs": [{"ip": ip}],
        "startTime": now,
        "containerStatuses": [
            {
                "name": container["name"],
                "state": {"running": {"startedAt": now}},
                "lastState": {},
                "ready": True,
                "started": True,
                "restartCount": 0,
                "image": container["image"],
                "imageID": "sha256:0",
                "containerID": f"containerd://{pod['metadata']['uid']}",
            }
        ],
    }
    return status
