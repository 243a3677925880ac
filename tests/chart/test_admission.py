"""The webhook: what is sent to it, where, and that nothing depends on it; off, it leaves nothing behind."""

import json

import pytest

from kvtide_operator.admission.server import ANSWER_WITHIN_S, PATH
from kvtide_operator.api import names
from tests.chart.conftest import NAMESPACE, Manifest, Render, of_kind
from tests.chart.test_deployment import arguments, container


def webhook(objects: list[Manifest]) -> Manifest:
    (configuration,) = of_kind(objects, "ValidatingWebhookConfiguration")
    (only,) = configuration["webhooks"]
    return dict(only)


def test_it_is_asked_about_resources_and_not_about_scaling_or_status(render: Render) -> None:
    (rule,) = webhook(render())["rules"]
    assert rule == {
        "apiGroups": [names.GROUP],
        "apiVersions": [names.VERSION],
        "resources": [names.PLURAL],
        "operations": ["CREATE", "UPDATE"],
        "scope": "Namespaced",
    }


def test_it_never_stands_in_the_way(render: Render) -> None:
    asked = webhook(render())
    assert asked["failurePolicy"] == "Ignore"
    assert asked["sideEffects"] == "None"  # or a dry run would not ask it
    assert asked["timeoutSeconds"] > ANSWER_WITHIN_S
    assert webhook(render("admission.timeoutSeconds=7"))["timeoutSeconds"] == 7


def test_the_bundle_is_the_operators_to_write(render: Render) -> None:
    assert webhook(render())["clientConfig"].keys() == {"service"}


@pytest.mark.parametrize("override", ["", "k" * 50], ids=["default", "the longest name"])
def test_the_service_leads_to_the_port_that_the_operator_serves_on(render: Render, override: str) -> None:
    objects = render(f"fullnameOverride={override}")
    asked = webhook(objects)["clientConfig"]["service"]
    (service,) = [found for found in of_kind(objects, "Service") if found["metadata"]["name"] == asked["name"]]
    (configuration,) = of_kind(objects, "ValidatingWebhookConfiguration")
    ports = {port["name"]: str(port["containerPort"]) for port in container(objects)["ports"]}
    (port,) = service["spec"]["ports"]
    given = dict(arguments(objects))

    assert len(asked["name"]) <= 63
    assert (asked["namespace"], asked["path"], asked["port"]) == (NAMESPACE, PATH, port["port"])
    assert ports[port["targetPort"]] == given["--admission-port"]
    assert given["--admission-service"] == asked["name"]
    assert given["--admission-configuration"] == configuration["metadata"]["name"]
    assert given["--lease-namespace"] == asked["namespace"]


def test_it_is_asked_where_the_operator_serves_and_nowhere_else(render: Render) -> None:
    assert "namespaceSelector" not in webhook(render())
    assert webhook(render("watchNamespaces={team-a,team-b}"))["namespaceSelector"] == {
        # https://kubernetes.io/docs/reference/labels-annotations-taints/#kubernetes-io-metadata-name
        "matchExpressions": [
            {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["team-a", "team-b"]},
        ]
    }


def test_off_it_leaves_nothing_behind(render: Render) -> None:
    on, off = render(), render("admission.enabled=false")
    assert json.dumps(on).count("admission") > 10
    # the CRD's own descriptions aside
    assert "admission" not in json.dumps([found for found in off if found["kind"] != "CustomResourceDefinition"])
    assert len(on) - len(off) == 6  # Service, configuration, a Role and a ClusterRole with their bindings


def test_readiness_does_not_depend_on_it(render: Render) -> None:
    probes = ("startupProbe", "livenessProbe", "readinessProbe")
    assert {container(render())[probe]["httpGet"]["port"] for probe in probes} == {"health"}
