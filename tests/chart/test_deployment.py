"""The operator's pod: locked down, probed for real, and found by those who look for it by label and port."""

from typing import Any

import pytest
from click import Option

from kvtide_operator.api.names import OPERATOR_APP, PART_OF
from kvtide_operator.command import operator_command
from tests.chart.conftest import NAMESPACE, Manifest, Render, of_kind


def pod(objects: list[Manifest]) -> dict[str, Any]:
    (deployment,) = of_kind(objects, "Deployment")
    spec: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return spec


def container(objects: list[Manifest]) -> dict[str, Any]:
    (only,) = pod(objects)["containers"]
    return dict(only)


def arguments(objects: list[Manifest]) -> list[tuple[str, str]]:
    """The flags and their values, in order."""
    return [(flag, value) for flag, _, value in (word.partition("=") for word in container(objects)["args"])]


def test_it_meets_the_pod_security_standard_restricted(render: Render) -> None:
    """https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted, and a read-only root."""
    objects = render()
    spec, own = pod(objects), container(objects)["securityContext"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert own["allowPrivilegeEscalation"] is False
    assert own["capabilities"] == {"drop": ["ALL"]}
    assert own["readOnlyRootFilesystem"] is True
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    assert [volume.keys() - {"name"} for volume in spec["volumes"]] == [{"emptyDir"}]
    assert [mount["mountPath"] for mount in container(objects)["volumeMounts"]] == ["/tmp"]


def test_it_asks_for_little_and_its_memory_is_bounded(render: Render) -> None:
    resources = container(render())["resources"]
    assert resources["requests"] == {"cpu": "50m", "memory": "128Mi"}
    assert resources["limits"].keys() == {"memory"}


@pytest.mark.parametrize(
    ("probe", "path"), [("startupProbe", "/healthz"), ("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")]
)
def test_a_probe_asks_the_port_that_the_operator_is_told_to_answer_on(render: Render, probe: str, path: str) -> None:
    objects = render()
    asked = container(objects)[probe]["httpGet"]
    assert asked["path"] == path
    ports = {port["name"]: str(port["containerPort"]) for port in container(objects)["ports"]}
    assert ports[asked["port"]] == dict(arguments(objects))["--health-port"]
    assert ports["metrics"] == dict(arguments(objects))["--metrics-port"]


def test_every_argument_is_a_flag_of_the_operator(render: Render) -> None:
    flags = {name for option in operator_command.params if isinstance(option, Option) for name in option.opts}
    objects = render("watchNamespaces={team-a}", "verbose=true")
    assert {flag for flag, _ in arguments(objects)} <= flags
    assert container(objects)["command"] == ["kvtide", "operator"]


def test_what_the_values_say_reaches_the_operator(render: Render) -> None:
    objects = render(
        "image.repository=registry.example/operator", "image.tag=a1",
        "worker.image.repository=registry.example/worker", "worker.image.tag=b2",
        "watchNamespaces={team-a,team-b}", "resyncSeconds=5",
    )  # fmt: skip
    given = arguments(objects)
    assert container(objects)["image"] == "registry.example/operator:a1"
    assert ("--worker-image", "registry.example/worker:b2") in given
    assert [value for flag, value in given if flag == "--namespace"] == ["team-a", "team-b"]
    assert ("--resync-seconds", "5") in given
    assert ("--lease-namespace", NAMESPACE) in given


def test_the_workers_network_policy_and_prometheus_find_its_pods(render: Render) -> None:
    objects = render("fullnameOverride=other")
    (deployment,) = of_kind(objects, "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert labels["app.kubernetes.io/name"] == OPERATOR_APP
    assert labels["app.kubernetes.io/part-of"] == PART_OF
    assert "metrics" in [port["name"] for port in container(objects)["ports"]]


def test_the_services_and_the_budget_select_its_pods_and_no_workers(render: Render) -> None:
    objects = render("replicas=2")
    (deployment,) = of_kind(objects, "Deployment")
    services = of_kind(objects, "Service")
    (budget,) = of_kind(objects, "PodDisruptionBudget")
    selector = deployment["spec"]["selector"]["matchLabels"]
    assert selector.items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    assert len(services) == 2  # metrics and admission
    assert all(service["spec"]["selector"] == selector for service in services)
    assert budget["spec"]["selector"]["matchLabels"] == selector
    assert selector["app.kubernetes.io/name"] == OPERATOR_APP


def test_one_pod_has_no_budget_that_would_block_a_drain(render: Render) -> None:
    assert of_kind(render(), "PodDisruptionBudget") == []
