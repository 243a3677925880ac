"""What the tests of faults share: streams that run through a fault, and a watch for a status that is not true."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench.traffic import StreamResult, Traffic
from devcluster.demo.cluster import Cluster, CommandFailed, wait_until
from tests.cluster.conftest import NAMESPACE, Resource, condition, get, pods, status

# Two passes, and what the API server and kubectl take on a machine that has other things to do.
SLACK_S = 10.0


@dataclass
class Witness:
    """Looks once a second whether Ready is said of a resource that has fewer ready pods than it wants."""

    cluster: Cluster
    name: str
    desired: int
    lies: list[str] = field(default_factory=list)
    seen: set[tuple[str, str]] = field(default_factory=set)
    _since: float | None = None

    def look(self) -> None:
        """One look. An API server that does not answer says nothing, true or false."""
        with contextlib.suppress(CommandFailed):
            found = condition(self.cluster, self.name, "Ready")
            self.seen.add((found.get("status", ""), found.get("reason", "")))
            lacking = found.get("status") == "True" and len(ready_pods(self.cluster, self.name)) < self.desired
            self._since = (self._since or time.monotonic()) if lacking else None
            if self._since is not None and time.monotonic() - self._since > SLACK_S:
                self.lies.append(f"Ready=True ({found.get('reason')}) with fewer than {self.desired} ready pods")


@contextlib.asynccontextmanager
async def streams(
    cluster: Cluster, url: str, name: str, desired: int, concurrency: int = 4
) -> AsyncIterator[tuple[list[StreamResult], Witness]]:
    """Streams and a witness around a fault; gives the results, which are whole once it is left."""
    traffic = Traffic(url, name, concurrency=concurrency, prompt_words=20, max_tokens=48)
    witness, over = Witness(cluster, name, desired), asyncio.Event()

    async def watch() -> None:
        while not over.is_set():
            await asyncio.to_thread(witness.look)
            await asyncio.sleep(1)

    traffic.start()
    watching = asyncio.create_task(watch())
    try:
        await asyncio.to_thread(
            wait_until, "streams to flow", lambda: len(whole(traffic.results)) > concurrency, timeout_s=60
        )
        yield traffic.results, witness
    finally:
        over.set()
        await watching
        await traffic.stop(timeout_s=120)


def whole(results: list[StreamResult]) -> list[StreamResult]:
    """Those that were answered to their end."""
    return [result for result in results if not result.lost]


def lost(results: list[StreamResult]) -> list[str | None]:
    """What the clients of lost streams were told."""
    return [result.error for result in results if result.lost]


def ready_pods(cluster: Cluster, name: str) -> list[Resource]:
    """Worker pods that the kubelet calls ready and that are not going."""
    return [pod for pod in pods(cluster, name) if is_ready(pod) and "deletionTimestamp" not in pod["metadata"]]


def is_ready(pod: Resource) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", []))


def wait_all_ready(cluster: Cluster, name: str, desired: int, timeout_s: float = 240) -> None:
    """Until the resource is Ready with so many workers and nothing is on its way."""

    def settled() -> bool:
        seen = status(cluster, name)
        calm = condition(cluster, name, "Progressing").get("status") == "False"
        ready = condition(cluster, name, "Ready").get("status") == "True"
        return ready and calm and seen.get("readyReplicas") == desired == len(pods(cluster, name))

    wait_until(f"{name} to be ready with {desired} workers", settled, timeout_s=timeout_s)


def ever(cluster: Cluster, name: str, kind: str, reason: str, timeout_s: float) -> dict[str, str]:
    """The condition as it was when it first had this reason."""
    seen: list[dict[str, str]] = []

    def matches() -> bool:
        seen.append(condition(cluster, name, kind))
        return seen[-1].get("reason") == reason

    wait_until(f"{name}: {kind} for {reason}", matches, timeout_s=timeout_s, every_s=0.3)
    return seen[-1]


def restarts(cluster: Cluster, name: str) -> dict[str, int]:
    """By pod, how often its container was started again."""
    return {
        pod["metadata"]["name"]: sum(each["restartCount"] for each in pod["status"].get("containerStatuses", []))
        for pod in pods(cluster, name)
    }


def events(cluster: Cluster, name: str) -> set[str]:
    """The reasons of the events on a resource."""
    uid = get(cluster, name)["metadata"]["uid"]
    found = cluster.items("events", "-n", NAMESPACE, "--field-selector", f"involvedObject.uid={uid}")
    return {event["reason"] for event in found}


def processes(pod: Resource) -> Iterator[int]:
    """The processes of a pod's containers, which the devcluster runs on this machine; the sandbox's own is none."""
    container = pod["status"]["containerStatuses"][0]["containerID"].rpartition("/")[2]
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if container in (folder / "cgroup").read_text():
                yield int(folder.name)


def stop(pod: Resource) -> None:
    """Stops all processes of a pod as a debugger would: they hold everything and do nothing."""
    found = list(processes(pod))
    assert found, "the pod's processes are not on this machine"
    for pid in found:
        os.kill(pid, signal.SIGSTOP)
