"""python -m bench.operator_size: one operator, a real API server, many resources with simulated workers."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import resource as limits
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from rich.console import Console
from rich.table import Table

from bench.goals import judged
from bench.operator_size import control_plane, measured, resources
from bench.operator_size.client import MERGE, RESOURCES, Api, Refused
from bench.operator_size.control_plane import ControlPlane
from bench.operator_size.kubelet import NODES, Kubelet
from bench.operator_size.measured import READS, WRITES, Stretch
from bench.operator_size.processes import MIB, Processes, cpu_seconds, free_ports, rss_bytes
from bench.operator_size.watching import Seen
from devcluster.binaries import binary
from devcluster.paths import REPOSITORY
from kvtide_operator.api import names

EPILOG = """
first reconcile   all resources exist, none was reconciled: from the operator's start until all are Ready
spec -> acted on  from the PATCH of minReplicas until the Deployment is seen with the new replicas
restart           from the start of a second operator, the first one ended, until it has passed over all
load -> acted on  from the workers' states saying that the pool is 95 % full until the same
quiet             nothing changes: what the API server was asked, and what the operator took; the Lease's own
                  requests are told apart

etcd, kube-apiserver and kube-controller-manager are the devcluster's binary, started on free ports of loopback with
their data in a temporary folder. The kubelet and the workers are simulated: pods are bound, said to be running, and
answered for at addresses from 127.100.0.0 to 127.199.255.255, ports 8000 and 8001.
"""
SYSTEM = "kvtide-system"
AT_ONCE = 16
ACTED_ON_S = 60.0


@dataclass(frozen=True)
class Outcome:
    """Seconds, but for `quiet`. A change that was not acted on in ACTED_ON_S counts as that."""

    first_s: float
    first_cpu_s: float
    others_cpu_s: float
    peak_mib: float
    spec_s: list[float]
    load_s: list[float]
    quiet: Stretch
    restart_s: float


@dataclass(frozen=True)
class Operator:
    """One operator process."""

    pid: int
    health_port: int
    metrics_port: int

    async def read(self, session: aiohttp.ClientSession, port: int, path: str) -> str:
        """What it says at one of its ports."""
        async with session.get(f"http://127.0.0.1:{port}{path}") as response:
            return await response.text()


def percentile(values: list[float], share: float) -> float:
    """The smallest value that so many of all do not pass."""
    ordered = sorted(values)
    return ordered[max(0, min(len(ordered) - 1, round(share * len(ordered)) - 1))] if ordered else float("nan")


async def prepare(api: Api, count: int, workers: int) -> None:
    """The CRD, the operator's rights as the chart gives them, namespaces, nodes and resources."""
    crd = yaml.safe_load((REPOSITORY / "crds" / "llmdeployments.yaml").read_text())
    await api.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
    for namespace in (SYSTEM, *(resources.namespace(number) for number in range(min(count, resources.NAMESPACES)))):
        await api.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    chart = [binary("helm"), "template", "kvtide", str(REPOSITORY / "charts" / "kvtide"), "--namespace", SYSTEM]
    rendered = (await asyncio.to_thread(subprocess.run, chart, capture_output=True, text=True, check=True)).stdout
    for manifest in filter(None, yaml.safe_load_all(rendered)):
        group, _, version = manifest["apiVersion"].rpartition("/")
        if group == "rbac.authorization.k8s.io":
            namespace = manifest["metadata"].get("namespace")
            place = f"namespaces/{namespace}/" if namespace else ""
            await api.call("POST", f"/apis/{group}/{version}/{place}{manifest['kind'].lower()}s", manifest)
    for number in range(NODES):
        await api.call("POST", "/api/v1/nodes", {"metadata": {"name": f"node-{number}"}})
    await _served(api)
    numbers = iter(range(count))

    async def make() -> None:
        for number in numbers:
            path = f"{RESOURCES}/namespaces/{resources.namespace(number)}/{names.PLURAL}"
            await api.call("POST", path, resources.resource(number, workers))

    await asyncio.gather(*(make() for _ in range(AT_ONCE)))


async def _served(api: Api) -> None:
    """Waits until the API server serves the kind that it was just told of."""
    while True:
        with contextlib.suppress(Refused):
            await api.call("GET", f"{RESOURCES}/{names.PLURAL}")
            return
        await asyncio.sleep(0.2)


class Run:
    """One run; `say` prints a line with the time since its begin."""

    def __init__(self, options: argparse.Namespace, processes: Processes) -> None:
        self.options, self.processes = options, processes
        self.began = time.monotonic()

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.began:6.1f} s] {text}", flush=True)

    async def go(self) -> Outcome:
        options = self.options
        plane = await control_plane.start(self.processes)
        self.say(f"the API server is ready at {plane.server}, logs in {self.processes.logs}")
        api = Api(plane)
        workers = self.processes.start("workers", [sys.executable, "-m", "bench.operator_size.workers"])
        kubelet = Kubelet(api, workers, resources.idle_state(options.workers))
        seen = Seen(api)
        try:
            await prepare(api, options.resources, options.workers)
            self.say(f"{options.resources} resources exist")
            async with asyncio.TaskGroup() as group:
                background = [group.create_task(kubelet.run()), group.create_task(seen.run())]
                outcome = await self._measure(plane, api, kubelet, seen)
                for task in background:
                    task.cancel()
            return outcome
        finally:
            await api.close()

    async def _measure(self, plane: ControlPlane, api: Api, kubelet: Kubelet, seen: Seen) -> Outcome:
        options = self.options
        before = self.processes.cpu_seconds()
        operator = self._start_operator(plane, "operator")
        pid = operator.pid
        first_s = await self._all_ready(operator, seen, kubelet)
        first_cpu, first_peak = cpu_seconds(pid), rss_bytes(pid) / MIB
        others_cpu = self.processes.cpu_seconds() - before - first_cpu
        self.say(
            f"all Ready after {first_s:.1f} s; the operator took {first_cpu:.0f} s of CPU, has {first_peak:.0f} MiB"
        )
        await self._pause(options.settle, "settles")
        quiet = await measured.stretch(plane, pid, options.quiet, self.say)
        self.say(f"requests a minute while quiet: {quiet.table()}")
        # Changes are spread over the resources: one kind counts from the first, the other from the last.
        changes = min(options.changes, options.resources // 2)
        step = max(1, options.resources // 2 // max(1, changes))
        spec_s = [await self._change_spec(api, seen, number * step) for number in range(changes)]
        self.say(f"{changes} spec changes acted on, p95 {percentile(spec_s, 0.95):.2f} s")
        load_s = []
        for number in range(changes):
            load_s.append(await self._change_load(kubelet, seen, options.resources - 1 - number * step))
        self.say(f"{changes} changes of load acted on, p95 {percentile(load_s, 0.95):.2f} s")
        async with aiohttp.ClientSession() as session:
            self.say(f"/healthz: {await operator.read(session, operator.health_port, '/healthz')}")
        peak = max(first_peak, quiet.rss_peak_mib, rss_bytes(pid) / MIB)
        restart_s = await self._restart(plane)
        return Outcome(first_s, first_cpu, others_cpu, peak, spec_s, load_s, quiet, restart_s)

    def _start_operator(self, plane: ControlPlane, name: str) -> Operator:
        health_port, metrics_port = free_ports(2)
        command = [
            str(Path(sys.executable).with_name("kvtide")), "operator", "--worker-image", "registry/worker:1",
            "--lease-namespace", SYSTEM, "--health-port", str(health_port), "--metrics-port", str(metrics_port),
        ]  # fmt: skip
        process = self.processes.start(name, command, {"KUBECONFIG": str(plane.kubeconfig["operator"])})
        return Operator(process.pid, health_port, metrics_port)

    async def _all_ready(self, operator: Operator, seen: Seen, kubelet: Kubelet) -> float:
        """Seconds until every resource is Ready."""
        began = said = time.monotonic()
        while len(seen.ready) < self.options.resources:
            self.processes.check()
            if time.monotonic() - said >= 5:
                said = time.monotonic()
                self.say(
                    f"{len(seen.ready)} Ready, {kubelet.ready} pods run, {rss_bytes(operator.pid) / MIB:.0f} MiB,"
                    f" {cpu_seconds(operator.pid) / (said - began):.2f} cores; {seen.waiting_for()}"
                )
            await asyncio.sleep(0.1)
        return time.monotonic() - began

    async def _restart(self, plane: ControlPlane) -> float:
        """Seconds from a new operator's start until it has looked at every resource."""
        self.processes.stop_one("operator")
        began = time.monotonic()
        operator = self._start_operator(plane, "operator-again")
        async with aiohttp.ClientSession() as session:
            while True:
                self.processes.check()
                with contextlib.suppress(aiohttp.ClientError):
                    metrics = await operator.read(session, operator.metrics_port, "/metrics")
                    if metrics.count("kvtide_reconcile_duration_seconds_count{") >= self.options.resources:
                        return time.monotonic() - began
                await asyncio.sleep(0.3)

    async def _pause(self, seconds: float, what: str) -> None:
        self.say(f"{what} for {seconds:.0f} s")
        await asyncio.sleep(seconds)
        self.processes.check()

    async def _change_spec(self, api: Api, seen: Seen, number: int) -> float:
        name, wanted = resources.name(number), self.options.workers + 1
        began = time.monotonic()
        path = f"{RESOURCES}/namespaces/{resources.namespace(number)}/{names.PLURAL}/{name}"
        await api.call("PATCH", path, {"spec": {"autoscaling": {"minReplicas": wanted}}}, MERGE)
        return await self._acted_on(seen, name, wanted, began)

    async def _change_load(self, kubelet: Kubelet, seen: Seen, number: int) -> float:
        name, busy = resources.name(number), resources.busy_parts(kubelet.idle)
        began = time.monotonic()
        for pod in kubelet.pods_of[name]:
            kubelet.say(pod, name, **busy)
        return await self._acted_on(seen, name, self.options.workers + 1, began)

    async def _acted_on(self, seen: Seen, name: str, wanted: int, began: float) -> float:
        at = await seen.replicas_of(name, wanted, ACTED_ON_S)
        self.processes.check()
        if at is None:
            self.say(f"{name} was not acted on within {ACTED_ON_S:.0f} s")
        # What follows a change, such as its pod's start, is not to be the next one's burden.
        await asyncio.sleep(self.options.between)
        return ACTED_ON_S if at is None else at - began


def show(options: argparse.Namespace, outcome: Outcome) -> None:
    """The table, goals beside what was measured."""
    quiet = outcome.quiet
    table = Table("", "measured", "goal", "")
    writes = quiet.a_minute(WRITES, without=("leases",))
    rows: list[tuple[str, str, str, bool | None]] = [
        ("first reconcile of all", f"{outcome.first_s:.0f} s", "180 s", outcome.first_s < 180),
        ("  CPU of the operator for it", f"{outcome.first_cpu_s:.0f} s", "", None),
        ("  CPU of all else for it", f"{outcome.others_cpu_s:.0f} s", "", None),
    ]
    for what, values in (("spec", outcome.spec_s), ("load", outcome.load_s)):
        p95 = percentile(values, 0.95)
        told = f"{percentile(values, 0.5):.2f} s, {p95:.2f} s, {max(values, default=0):.2f} s"
        rows.append((f"{what} -> acted on: p50, p95, most of {len(values)}", told, "p95 2 s", p95 <= 2))
    rows += [
        ("restart, until all are looked at", f"{outcome.restart_s:.1f} s", "", None),
        ("memory, most", f"{outcome.peak_mib:.0f} MiB", "400 MB", outcome.peak_mib * MIB < 400e6),
        (
            f"memory, slope over {quiet.seconds / 60:.0f} min",
            f"{quiet.rss_slope_mib_per_hour:+.1f} MiB/h",
            "flat",
            abs(quiet.rss_slope_mib_per_hour) < 10 if quiet.seconds >= 600 else None,
        ),
        ("quiet: writes a minute, without the Lease", f"{writes:.1f}", "0", writes == 0),
        ("quiet: reads a minute, without the Lease", f"{quiet.a_minute(READS, ('leases',)):.1f}", "", None),
        ("quiet: CPU of the operator", f"{quiet.cores:.2f} cores", "", None),
    ]
    for what, found, goal, met in rows:
        table.add_row(what, found, goal, "" if met is None else judged(met))
    console = Console()
    console.print(f"{options.resources} resources, {options.workers} workers each")
    console.print(table)


def main() -> None:
    """Parses, runs, shows; ends what was started whatever happens."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.operator_size",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    number: dict[str, Any] = {"type": int, "metavar": "N"}
    seconds: dict[str, Any] = {"type": float, "metavar": "S"}
    parser.add_argument("--resources", default=1000, **number, help="LLMDeployments (default: 1000)")
    parser.add_argument("--workers", default=3, **number, help="workers of each (default: 3)")
    parser.add_argument("--changes", default=50, **number, help="changes of each kind that are timed (default: 50)")
    parser.add_argument("--between", default=0.3, **seconds, help="pause after each (default: 0.3)")
    parser.add_argument("--settle", default=60.0, **seconds, help="pause before the quiet stretch (default: 60)")
    parser.add_argument("--quiet", default=180.0, **seconds, help="the quiet stretch (default: 180; flat: 1800)")
    parser.add_argument("--logs", metavar="FOLDER", help="keep the logs here (default: in a temporary folder)")
    options = parser.parse_args()
    soft, hard = limits.getrlimit(limits.RLIMIT_NOFILE)
    if soft < hard:
        limits.setrlimit(limits.RLIMIT_NOFILE, (hard, hard))
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, signal.default_int_handler)
    if options.logs:
        Path(options.logs).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kvtide-size-") as folder:
        processes = Processes(Path(folder), Path(options.logs or folder))
        try:
            show(options, asyncio.run(Run(options, processes).go()))
        except KeyboardInterrupt:
            raise SystemExit(130) from None
        finally:
            processes.stop()


if __name__ == "__main__":
    main()
