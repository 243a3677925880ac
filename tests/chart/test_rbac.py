"""The operator has the rights that it says it uses, and none elsewhere where it serves only some namespaces."""

import re
from collections.abc import Iterable

import pytest

from kvtide_operator.admission.keeper import secret_name
from kvtide_operator.settings import OperatorSettings
from tests.chart.conftest import NAMESPACE, ROOT, Manifest, Render, of_kind

Right = tuple[str, str, str]
LEASE = {("coordination.k8s.io", "leases", verb) for verb in ("get", "create", "update")}
MEASURED = {("", "configmaps", verb) for verb in ("get", "create", "patch")}
NODES = {("", "nodes", "list"), ("resource.k8s.io", "resourceslices", "list")}
CERTIFICATES = {("", "secrets", verb) for verb in ("get", "create", "update")}
WEBHOOK = {("admissionregistration.k8s.io", "validatingwebhookconfigurations", verb) for verb in ("get", "update")}


def rights(roles: Iterable[Manifest]) -> set[Right]:
    """(group, resource, verb) of every rule."""
    return {
        (group, resource, verb)
        for role in roles
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def documented() -> set[Right]:
    """The rights of the table in the operator's README, which its authors keep beside the code."""
    text = (ROOT / "operator" / "kvtide_operator" / "README.md").read_text()
    rows = re.findall(r"^\| (core|`[\w.]+`) \| (`.+`) \| ([a-z, ]+) \|$", text, re.MULTILINE)
    return {
        ("" if group == "core" else group.strip("`"), resource, verb)
        for group, resources, verbs in rows
        for resource in re.findall(r"`([\w/]+)`", resources)
        for verb in verbs.split(", ")
    }


def operators_roles(objects: list[Manifest], kind: str) -> list[Manifest]:
    """Those that a binding gives to the operator's account, in contrast to the roles for people."""
    bound = {
        (binding["roleRef"]["name"], binding["metadata"].get("namespace"))
        for binding in of_kind(objects, f"{kind}Binding")
        if binding["roleRef"]["kind"] == kind
    }
    return [
        role
        for role in of_kind(objects, kind)
        if (role["metadata"]["name"], role["metadata"].get("namespace")) in bound
    ]


def test_the_cluster_role_is_what_the_operator_says_it_uses(render: Render) -> None:
    assert len(documented()) > 20
    assert rights(operators_roles(render("admission.enabled=false"), "ClusterRole")) == documented() | NODES
    assert rights(operators_roles(render(), "ClusterRole")) == documented() | NODES | WEBHOOK


def test_in_its_own_namespace_it_may_write_three_objects_and_nothing_else(render: Render) -> None:
    own, certificates = sorted(operators_roles(render(), "Role"), key=lambda role: "admission" in str(role))
    assert (rights([own]), rights([certificates])) == (LEASE | MEASURED, CERTIFICATES)
    settings = OperatorSettings(worker_image="", operator_namespace=NAMESPACE, identity="")
    names = {
        "leases": settings.lease_name,
        "configmaps": settings.overheads_name,
        "secrets": secret_name("kvtide-admission"),
    }
    for role in (own, certificates):
        assert role["metadata"]["namespace"] == NAMESPACE
        for rule in role["rules"]:
            (resource,) = rule["resources"]
            assert rule["verbs"] == ["create"] or rule["resourceNames"] == [names[resource]]


def test_with_namespaces_it_has_the_same_rights_there_and_in_the_cluster_its_webhooks_alone(render: Render) -> None:
    objects = render("watchNamespaces={team-a,team-b}")
    (role,) = operators_roles(objects, "ClusterRole")
    (webhook,) = of_kind(objects, "ValidatingWebhookConfiguration")
    assert rights([role]) == WEBHOOK
    assert [rule["resourceNames"] for rule in role["rules"]] == [[webhook["metadata"]["name"]]]
    assert operators_roles(render("watchNamespaces={team-a}", "admission.enabled=false"), "ClusterRole") == []
    for namespace in ("team-a", "team-b"):
        roles = [r for r in operators_roles(objects, "Role") if r["metadata"]["namespace"] == namespace]
        assert rights(roles) == documented()


def test_it_can_be_installed_without_an_object_outside_of_its_namespace(render: Render) -> None:
    objects = render(
        f"watchNamespaces={{{NAMESPACE}}}", "crd.install=false", "rbac.aggregateToDefaultRoles=false",
        "admission.enabled=false",
    )  # fmt: skip
    assert {found["metadata"].get("namespace") for found in objects} == {NAMESPACE}


@pytest.mark.parametrize("settings", [[], ["watchNamespaces={team-a}"]], ids=["cluster", "namespaces"])
def test_no_wildcards_and_no_way_to_more_rights(render: Render, settings: list[str]) -> None:
    objects = render(*settings)
    granted = rights(of_kind(objects, "ClusterRole") + of_kind(objects, "Role"))
    assert not [right for right in granted if "*" in right]
    assert not {verb for _, _, verb in granted} & {"bind", "escalate", "impersonate"}
    assert not [right for right in granted if right[0] == "rbac.authorization.k8s.io"]


def test_every_binding_names_the_account_that_the_pod_runs_as(render: Render) -> None:
    objects = render("serviceAccount.create=false", "serviceAccount.name=ours", "watchNamespaces={team-a}")
    (deployment,) = of_kind(objects, "Deployment")
    assert deployment["spec"]["template"]["spec"]["serviceAccountName"] == "ours"
    assert of_kind(objects, "ServiceAccount") == []
    for binding in of_kind(objects, "RoleBinding"):
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "ours", "namespace": NAMESPACE}]


def test_people_get_what_view_and_edit_promise(render: Render) -> None:
    """https://kubernetes.io/docs/reference/access-authn-authz/rbac/#user-facing-roles: view reads, edit writes."""
    roles = {role["metadata"]["name"].rsplit("-", 1)[-1]: role for role in of_kind(render(), "ClusterRole")}
    reading, writing = {"get", "list", "watch"}, {"create", "update", "patch", "delete", "deletecollection"}
    assert {verb for _, _, verb in rights([roles["view"]])} == reading
    assert {verb for _, _, verb in rights([roles["edit"]])} == writing
    assert roles["view"]["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
    assert roles["edit"]["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-edit"] == "true"
    assert ("serving.kvtide.dev", "llmdeployments/status", "patch") not in rights([roles["edit"]])
