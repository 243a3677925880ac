"""The cluster as a person uses it: kubectl, helm and Prometheus queries, with the environment of `devcluster env`."""

import dataclasses
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx2

ROOT = Path(__file__).resolve().parents[2]


class CommandFailed(RuntimeError):
    """A command ended with an exit status other than 0. The message holds what it printed."""


def devcluster(*args: str) -> str:
    """Run `python -m devcluster ...` and give what it printed; what it says on stderr is shown as it comes."""
    done = subprocess.run(
        [sys.executable, "-m", "devcluster", *args], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise CommandFailed(f"devcluster {' '.join(args)} ended with status {done.returncode}\n{done.stdout}")
    return done.stdout


@dataclasses.dataclass(frozen=True)
class Cluster:
    """A running devcluster: its environment for kubectl and helm, and the address of its Prometheus."""

    environment: dict[str, str]
    prometheus_url: str

    @classmethod
    def connect(cls) -> "Cluster":
        """Read the environment of the running devcluster. Raises CommandFailed where none runs."""
        exports = dict(re.findall(r'^export (\w+)="?([^"\n]*)"?$', devcluster("env"), re.MULTILINE))
        exports["PATH"] = exports["PATH"].replace("$PATH", os.environ["PATH"])
        return cls(os.environ | exports, exports["PROMETHEUS_URL"])

    def run(self, *command: str, stdin: str | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command in the repository's root. Raises CommandFailed with its output, unless `check` is off."""
        done = subprocess.run(
            command, cwd=ROOT, env=self.environment, input=stdin, capture_output=True, text=True, check=False
        )
        if check and done.returncode:
            raise CommandFailed(f"{' '.join(command)}: status {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def kubectl(self, *args: str, stdin: str | None = None) -> str:
        """kubectl's standard output."""
        return self.run("kubectl", *args, stdin=stdin).stdout

    def get(self, *args: str) -> Any:
        """`kubectl get ... -o json`, parsed; None for an object that is not there."""
        text = self.kubectl("get", *args, "-o", "json", "--ignore-not-found")
        return json.loads(text) if text else None

    def items(self, *args: str) -> list[Any]:
        """The objects that `kubectl get ...` lists."""
        listed = self.get(*args)
        return listed["items"] if listed else []

    def condition(self, namespace: str, name: str, kind: str) -> dict[str, str]:
        """One condition from an LLMDeployment's status, empty where it is not there yet."""
        resource = self.get("llmd", name, "-n", namespace) or {}
        conditions = resource.get("status", {}).get("conditions", [])
        return next((found for found in conditions if found["type"] == kind), {})

    def helm(self, *args: str) -> str:
        """helm's standard output."""
        return self.run("helm", *args).stdout

    def images(self) -> dict[str, str]:
        """Build what has changed, load it into the node, and give the image of each part."""
        images: dict[str, str] = json.loads(devcluster("images", "--json"))
        return images

    def forward(self, service: str) -> str:
        """Make NAMESPACE/SERVICE:PORT reachable on loopback, balanced by kube-proxy; gives the URL."""
        return devcluster("forward", service).strip().splitlines()[-1]

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """An instant query: the labels and the value of each series."""
        answer = self._prometheus("query", query=expression)
        return [(row["metric"], float(row["value"][1])) for row in answer["data"]["result"]]

    def query_range(self, expression: str, start: float, end: float, step_s: int) -> dict[float, float]:
        """A range query that gives one series: Unix time to value."""
        answer = self._prometheus("query_range", query=expression, start=start, end=end, step=step_s)
        series = answer["data"]["result"]
        return {float(at): float(value) for at, value in series[0]["values"]} if series else {}

    def _prometheus(self, endpoint: str, **parameters: str | float) -> Any:
        answer = httpx2.get(f"{self.prometheus_url}/api/v1/{endpoint}", params=parameters, timeout=10)
        return answer.raise_for_status().json()


def install(cluster: Cluster, images: dict[str, str], chart: str = "charts/kvtide") -> str:
    """`helm upgrade --install` the operator with these images, and wait for it. Gives helm's notes."""
    settings = []
    for part, key in (("operator", "image"), ("worker", "worker.image")):
        repository, tag = images[part].rsplit(":", 1)
        settings += ["--set-string", f"{key}.repository={repository},{key}.tag={tag}"]
    return cluster.helm(
        "upgrade", "--install", "kvtide", chart, "--namespace", "kvtide-system", "--create-namespace",
        "--wait", "--timeout", "120s", *settings,
    )  # fmt: skip


def wait_until(what: str, seen: Any, *, timeout_s: float, every_s: float = 0.5) -> float:
    """Call `seen` until it gives something true; gives the seconds it took. Raises TimeoutError."""
    start = time.monotonic()
    while not seen():
        if time.monotonic() - start > timeout_s:
            raise TimeoutError(f"waited {timeout_s:.0f} s for {what}")
        time.sleep(every_s)
    return time.monotonic() - start
