"""A value that is wrong is refused by its name, before anything reaches the cluster."""

from collections.abc import Callable

import pytest
import yaml

from tests.chart.conftest import CHART, HelmFailed, Render, of_kind


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("replica=2", "replica"),
        ("image.tga=1.0", "tga"),
        ("worker.image.pullPolicy=Always", "pullPolicy"),
        ("crd.instal=false", "instal"),
        ("admission.enable=false", "enable"),
        ("admission.failurePolicy=Fail", "failurePolicy"),
        ("admission.timeoutSeconds=1", "timeoutSeconds"),
        ("rbac.create=false", "create"),
        ("image.pullPolicy=Sometimes", "pullPolicy"),
        ("image.repository=", "repository"),
        ("replicas=two", "replicas"),
        ("replicas=-1", "replicas"),
        ("resyncSeconds=0", "resyncSeconds"),
        ("watchNamespaces={Team_A}", "watchNamespaces"),
        ("watchNamespaces=team-a", "watchNamespaces"),
        ("serviceAccount.create=false", "serviceAccount"),
        ("podMonitor.interval=fast", "interval"),
        ("fullnameOverride=KVTide", "fullnameOverride"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(render: Render, setting: str, named: str) -> None:
    with pytest.raises(HelmFailed, match=named):
        render(setting)


@pytest.mark.parametrize(
    "settings",
    [
        [],
        ["replicas=2", "podMonitor.enabled=true", "prometheusRule.enabled=true"],
        ["watchNamespaces={team-a,team-b}", "rbac.aggregateToDefaultRoles=false", "crd.install=false"],
    ],
    ids=["defaults", "everything on", "one team"],
)
def test_lint_is_clean(helm: Callable[..., str], settings: list[str]) -> None:
    flags = [word for setting in settings for word in ("--set", setting)]
    said = helm("lint", "--strict", str(CHART), *flags)
    assert "[WARNING]" not in said
    assert "0 chart(s) failed" in said


def test_no_hooks_so_that_an_uninstall_has_nothing_to_wait_for(render: Render) -> None:
    for found in render("replicas=2", "podMonitor.enabled=true", "prometheusRule.enabled=true"):
        assert "helm.sh/hook" not in found["metadata"].get("annotations", {}), found["kind"]
        assert "finalizers" not in found["metadata"], found["kind"]


def test_a_second_release_shares_no_name_with_the_first(helm: Callable[..., str]) -> None:
    def cluster_scoped(namespace: str) -> set[tuple[str, str]]:
        text = helm("template", "kvtide", str(CHART), "--namespace", namespace, "--set", "crd.install=false")
        objects = [document for document in yaml.safe_load_all(text) if document]
        return {(o["kind"], o["metadata"]["name"]) for o in objects if "namespace" not in o["metadata"]}

    first, second = cluster_scoped("team-a"), cluster_scoped("team-b")
    # the operator's role and binding, two roles for people, and of the webhook a role, a binding, the configuration
    assert len(first) == len(second) == 7
    assert not first & second


def test_the_prometheus_kinds_come_only_when_asked_for(render: Render) -> None:
    assert of_kind(render(), "PodMonitor") == of_kind(render(), "PrometheusRule") == []
    asked = render("podMonitor.enabled=true", "podMonitor.labels.release=prometheus", "prometheusRule.enabled=true")
    operator, workers = of_kind(asked, "PodMonitor")
    for monitor, name, port in ((operator, "kvtide-operator", "metrics"), (workers, "kvtide-worker", "http")):
        assert monitor["metadata"]["labels"]["release"] == "prometheus"
        assert monitor["spec"]["selector"]["matchLabels"]["app.kubernetes.io/name"] == name
        assert monitor["spec"]["podMetricsEndpoints"][0]["port"] == port
    assert workers["spec"]["namespaceSelector"] == {"any": True}
    (rule,) = of_kind(asked, "PrometheusRule")
    assert rule["spec"]["groups"][0]["rules"]
