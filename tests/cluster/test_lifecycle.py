"""Deleting, with the operator alive and dead, and uninstalling: nothing hangs and nothing is left."""

import pytest

from devcluster.demo.cluster import Cluster, wait_until
from tests.cluster.conftest import NAMESPACE, apply, client, example, get, service_url, wait_condition

KINDS = "deployments,replicasets,services,endpointslices,secrets,configmaps,poddisruptionbudgets,pods"


def left(cluster: Cluster, name: str) -> list[str]:
    """What still carries the resource's label, whatever its kind."""
    items = cluster.items(KINDS, "-n", NAMESPACE, "-l", f"serving.kvtide.dev/name={name}")
    return [f"{item['kind']}/{item['metadata']['name']}" for item in items]


def scale_operator(cluster: Cluster, replicas: int) -> None:
    cluster.kubectl("scale", "deployment", "-n", "kvtide-system", "--all", f"--replicas={replicas}")
    cluster.kubectl("rollout", "status", "deployment", "-n", "kvtide-system", "--timeout=60s")


@pytest.mark.parametrize("operator_alive", [True, False], ids=["operator alive", "operator dead"])
def test_deleting_removes_everything(operator: Cluster, operator_alive: bool) -> None:
    name = "deleted"
    apply(operator, example(name))
    wait_condition(operator, name, "Ready", "True", timeout_s=120)
    assert len(left(operator, name)) >= 5
    assert not get(operator, name)["metadata"].get("finalizers")
    if not operator_alive:
        scale_operator(operator, 0)
    try:
        operator.kubectl("delete", "llmd", name, "-n", NAMESPACE, "--wait", "--timeout=20s")
        wait_until(f"everything of {name} to go", lambda: not left(operator, name), timeout_s=90)
    finally:
        scale_operator(operator, 1)


def test_uninstalling_leaves_the_workers_serving_and_nothing_that_hangs(operator: Cluster, images: dict) -> None:
    name = "orphaned"
    apply(operator, example(name))
    wait_condition(operator, name, "Ready", "True", timeout_s=120)
    url = service_url(operator, name)
    operator.helm("uninstall", "kvtide", "-n", "kvtide-system", "--wait", "--timeout", "60s")
    kinds = "all,serviceaccounts,roles,rolebindings,poddisruptionbudgets"
    wait_until(
        "what the chart made to go",
        lambda: not operator.items(kinds, "-n", "kvtide-system", "-l", "app.kubernetes.io/instance=kvtide"),
        timeout_s=60,
    )
    answer = client(url).completions.create(model=name, prompt="The capital of France is", max_tokens=8, temperature=0)
    assert "Paris" in answer.choices[0].text
    operator.kubectl("delete", "llmd", name, "-n", NAMESPACE, "--wait", "--timeout=20s")
    operator.kubectl("delete", "crd", "llmdeployments.serving.kvtide.dev", "--wait", "--timeout=30s")
    wait_until(f"everything of {name} to go", lambda: not left(operator, name), timeout_s=90)
