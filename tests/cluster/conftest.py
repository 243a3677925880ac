"""A devcluster with the operator installed, and LLMDeployments with the real SmolLM2 on it."""

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import yaml

from devcluster.demo.cluster import ROOT, Cluster, CommandFailed, devcluster, install, wait_until

NAMESPACE = "default"
HERE = Path(__file__).parent
Resource = dict[str, Any]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.cluster)
            # Of the test alone: what is compiled and built before the first one takes as long as the machine needs.
            item.add_marker(pytest.mark.timeout(420, func_only=True))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The running devcluster, or one for this session that is taken down after it."""
    try:
        Cluster.connect()
        ours = False
    except CommandFailed:
        ours = True
    devcluster("up")
    devcluster("model")
    connected = Cluster.connect()
    if connected.run("kubectl", "get", "crd", "llmdeployments.serving.kvtide.dev", check=False).returncode == 0:
        connected.kubectl("delete", "llmd", "--all", "-n", NAMESPACE, "--wait")
    yield connected
    if ours:
        devcluster("down")


@pytest.fixture(scope="session")
def images(cluster: Cluster) -> dict[str, str]:
    return cluster.images()


@pytest.fixture(scope="module")
def operator(cluster: Cluster, images: dict[str, str]) -> Cluster:
    """The cluster with the operator installed and ready, whatever an earlier module did to it."""
    install(cluster, images)
    return cluster


def example(name: str, changes: Resource | None = None) -> Resource:
    """examples/smollm2.yaml under another name, with nested changes to its spec."""
    resource: Resource = yaml.safe_load((ROOT / "examples" / "smollm2.yaml").read_text())
    resource["metadata"] = {"name": name, "namespace": NAMESPACE}
    resource["spec"]["model"].pop("servedName", None)
    merge(resource["spec"], changes or {})
    return resource


def merge(into: Resource, changes: Resource) -> None:
    for key, value in copy.deepcopy(changes).items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            merge(into[key], value)
        else:
            into[key] = value


def apply(cluster: Cluster, resource: Resource) -> str:
    """`kubectl apply`; raises CommandFailed with the API server's words where it refuses."""
    return cluster.kubectl("apply", "--validate=strict", "-f", "-", stdin=json.dumps(resource))


def get(cluster: Cluster, name: str) -> Resource:
    found: Resource = cluster.get("llmd", name, "-n", NAMESPACE)
    return found


def condition(cluster: Cluster, name: str, kind: str) -> dict[str, str]:
    return cluster.condition(NAMESPACE, name, kind)


def wait_condition(cluster: Cluster, name: str, kind: str, status: str, timeout_s: float = 90) -> dict[str, str]:
    wait_until(
        f"{name}: {kind}={status} (is {condition(cluster, name, kind)})",
        lambda: condition(cluster, name, kind).get("status") == status,
        timeout_s=timeout_s,
    )
    return condition(cluster, name, kind)


def pods(cluster: Cluster, name: str) -> list[Resource]:
    """The worker pods of a resource, those that are going included."""
    selector = f"serving.kvtide.dev/name={name},app.kubernetes.io/name=kvtide-worker"
    return cluster.items("pods", "-n", NAMESPACE, "-l", selector)


def status(cluster: Cluster, name: str) -> Resource:
    found: Resource = get(cluster, name).get("status", {})
    return found


def service_url(cluster: Cluster, name: str) -> str:
    return cluster.forward(f"{NAMESPACE}/{name}:80") + "/v1"


def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=60)


@pytest.fixture
def deployed(operator: Cluster) -> Iterator[Callable[..., str]]:
    """Applies a variant of the example, waits until it is Ready, gives its URL; deletes it after the test."""
    names: list[str] = []

    def deploy(name: str, changes: Resource | None = None) -> str:
        names.append(name)
        apply(operator, example(name, changes))
        wait_condition(operator, name, "Ready", "True", timeout_s=120)
        return service_url(operator, name)

    yield deploy
    for name in names:
        operator.kubectl("delete", "llmd", name, "-n", NAMESPACE, "--ignore-not-found", "--wait")
        wait_until(f"{name}'s pods to go", lambda name=name: not pods(operator, name), timeout_s=120)
