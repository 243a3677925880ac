"""What the cluster is asked for, against docs/architecture.md: "What a worker pod gets"."""

from collections.abc import Callable
from typing import Any

import pytest

from kvtide_operator.api.resource import LLMDeployment
from kvtide_operator.children.deployment import deployment
from kvtide_operator.children.disruption_budget import disruption_budget
from kvtide_operator.children.inspect_pod import inspect_pod
from kvtide_operator.children.network_policy import network_policy
from kvtide_operator.children.secret import admin_secret, token_of
from kvtide_operator.children.service import service
from kvtide_operator.children.worker_template import worker_template

Make = Callable[..., LLMDeployment]


def template(resource: LLMDeployment) -> dict[str, Any]:
    return worker_template(resource, "abc123", "registry/worker:1", weights_bytes=500_000_000)


def container(resource: LLMDeployment) -> dict[str, Any]:
    (only,) = template(resource)["spec"]["containers"]
    worker: dict[str, Any] = only
    return worker


def mounts(resource: LLMDeployment) -> dict[str, str]:
    return {mount["mountPath"]: mount["name"] for mount in container(resource)["volumeMounts"]}


def test_the_command_line(make_resource: Make) -> None:
    resource = make_resource(drain={"timeoutSeconds": 90})
    worker = container(resource)
    assert worker["command"] == ["kvtide", "serve"]
    assert " ".join(worker["args"]) == (
        "--model hf://HuggingFaceTB/SmolLM2-135M-Instruct --served-name chat --plan /etc/kvtide/plan.json"
        " --device cpu --host 0.0.0.0 --port 8000 --admin-port 8001"
        " --admin-token-file /etc/kvtide-admin/token --drain-seconds 90"
    )
    assert template(resource)["spec"]["terminationGracePeriodSeconds"] == 105  # 90 and 15 to spare


def test_an_option_that_earlier_workers_do_not_know_is_a_variable(make_resource: Make) -> None:
    """The command line above is the first release's: a worker whose image is pinned to it ends at any other option."""
    asked = {"name": "KVTIDE_REENCODABLE", "value": "1"}
    assert asked in container(make_resource())["env"]
    chosen = make_resource(kvCache={"precision": "BF16"})
    assert asked not in container(chosen)["env"], "a precision that somebody chose is not changed"
    own = make_resource(worker={"env": [{"name": "KVTIDE_REENCODABLE", "value": "0"}]})
    said = [entry["value"] for entry in container(own)["env"] if entry["name"] == "KVTIDE_REENCODABLE"]
    assert said[-1] == "0"  # of two, the later one counts


def test_environment_and_mounts(make_resource: Make) -> None:
    model = {"uri": "hf://a/b", "authSecretRef": {"name": "hf", "key": "t"}}
    resource = make_resource(model=model, worker={"env": [{"name": "X", "value": "1"}]})
    env = {entry["name"]: entry for entry in container(resource)["env"]}
    assert env["HOME"]["value"] == "/tmp"
    assert env["KVTIDE_MODEL_CACHE"]["value"] == "/var/cache/kvtide"
    assert env["HF_TOKEN"]["valueFrom"] == {"secretKeyRef": {"name": "hf", "key": "t"}}
    assert env["X"]["value"] == "1"
    assert set(mounts(resource)) == {"/tmp", "/var/cache/kvtide", "/etc/kvtide", "/etc/kvtide-admin"}
    volumes = {volume["name"]: volume for volume in template(resource)["spec"]["volumes"]}
    assert volumes["plan"]["configMap"] == {
        "name": "chat-plan",
        "items": [{"key": "plan-abc123.json", "path": "plan.json"}],
    }
    assert volumes["admin-token"]["secret"] == {"secretName": "chat-admin"}


def test_a_claim_is_mounted_read_only(make_resource: Make) -> None:
    resource = make_resource(model={"uri": "pvc://models/smol/model.gguf"})
    assert mounts(resource)["/models/pvc/models"] == "model"
    (volume,) = [v for v in template(resource)["spec"]["volumes"] if v["name"] == "model"]
    assert volume["persistentVolumeClaim"] == {"claimName": "models", "readOnly": True}


@pytest.mark.parametrize(
    ("spec", "resources"),
    [
        (
            {"device": {"kind": "CPU", "memory": "2Gi"}, "worker": {"resources": {"requests": {"cpu": "500m"}}}},
            {"requests": {"cpu": "500m", "memory": "2Gi"}, "limits": {"memory": "2Gi"}},
        ),
        (
            {"device": {"kind": "CPU"}, "worker": {"resources": {"limits": {"memory": "1536Mi", "cpu": "2"}}}},
            {"requests": {"memory": "1536Mi"}, "limits": {"memory": "1536Mi", "cpu": "2"}},
        ),
        ({"device": {"kind": "GPU", "memory": "40Gi"}}, {"limits": {"nvidia.com/gpu": "1"}}),
        ({"device": {"kind": "GPU"}}, {"limits": {"nvidia.com/gpu": "1"}}),
        (
            {"device": {"kind": "GPU", "memory": "40Gi", "resourceName": "amd.com/gpu"}},
            {"limits": {"amd.com/gpu": "1"}},
        ),
    ],
)
def test_resources(make_resource: Make, spec: dict[str, Any], resources: dict[str, Any]) -> None:
    assert container(make_resource(**spec))["resources"] == resources


def test_probes_and_ports(make_resource: Make) -> None:
    worker = container(make_resource())
    assert {port["name"]: port["containerPort"] for port in worker["ports"]} == {"http": 8000, "admin": 8001}
    paths = {name: worker[name]["httpGet"] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert paths == {
        "startupProbe": {"path": "/ready", "port": "http"},
        "readinessProbe": {"path": "/ready", "port": "http"},
        "livenessProbe": {"path": "/health", "port": "http"},
    }
    # One that hangs is found within a minute, and not waited for as for one that drains.
    liveness = worker["livenessProbe"]
    assert liveness["periodSeconds"] * liveness["failureThreshold"] + liveness["timeoutSeconds"] <= 60
    assert liveness["terminationGracePeriodSeconds"] == 10
    assert worker["startupProbe"]["periodSeconds"] == 1
    assert worker["startupProbe"]["failureThreshold"] == 310  # 300 s and 500 MB at 50 MB/s


@pytest.mark.parametrize("render", ["worker", "inspect"])
def test_pods_meet_the_restricted_pod_security_standard(make_resource: Make, render: str) -> None:
    resource = make_resource()
    pod = template(resource) if render == "worker" else inspect_pod(resource, "m1", "registry/worker:1")
    spec = pod["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] == 10001
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (only,) = spec["containers"]
    assert only["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_what_the_user_adds_cannot_take_our_labels(make_resource: Make) -> None:
    resource = make_resource(
        worker={"labels": {"team": "a", "serving.kvtide.dev/name": "x"}, "annotations": {"b": "c"}}
    )
    metadata = template(resource)["metadata"]
    assert metadata["labels"]["team"] == "a"
    assert metadata["labels"]["serving.kvtide.dev/name"] == "chat"
    assert metadata["annotations"] == {"b": "c"}


def test_all_children_are_owned_and_labelled(make_resource: Make) -> None:
    resource = make_resource()
    children = [
        deployment(resource, template(resource), 2, 0),
        service(resource),
        admin_secret(resource, "secret"),
        disruption_budget(resource),
        network_policy(resource, "kvtide-system"),
    ]
    for child in children:
        (owner,) = child["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"], owner["controller"]) == ("LLMDeployment", "u-1", True)
        assert "blockOwnerDeletion" not in owner
        labels = child["metadata"]["labels"]
        assert labels["app.kubernetes.io/part-of"] == "kvtide"
        assert labels["serving.kvtide.dev/name"] == "chat"


def test_the_deployment_never_surges(make_resource: Make) -> None:
    resource = make_resource()
    spec = deployment(resource, template(resource), 2, 0)["spec"]
    assert spec["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
    assert spec["replicas"] == 2
    assert spec["selector"]["matchLabels"].items() <= template(resource)["metadata"]["labels"].items()


def test_where_there_is_room_the_new_worker_comes_first(make_resource: Make) -> None:
    resource = make_resource()
    spec = deployment(resource, template(resource), 1, 0, surge=True)["spec"]
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


def test_a_node_can_be_drained_of_a_worker_that_is_broken(make_resource: Make) -> None:
    # https://kubernetes.io/docs/tasks/run-application/configure-pdb/#unhealthy-pod-eviction-policy
    spec = disruption_budget(make_resource())["spec"]
    assert (spec["maxUnavailable"], spec["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")


@pytest.mark.parametrize(
    ("affinity", "terms"),
    [
        (None, [[]]),
        ({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "a", "operator": "Exists"}]},
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]},
        ]}}}, [[{"key": "a", "operator": "Exists"}], []]),
    ],
)  # fmt: skip
def test_nodes_to_keep_off_are_left_out_of_every_choice(
    make_resource: Make, affinity: dict[str, Any] | None, terms: list[Any]
) -> None:
    resource = make_resource(worker={"affinity": affinity} if affinity else {})
    spec = worker_template(resource, "abc123", "registry/worker:1", 0, ("gpu", ("small",)))["spec"]
    required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    away = {"key": "gpu", "operator": "NotIn", "values": ["small"]}
    assert [term["matchExpressions"] for term in required["nodeSelectorTerms"]] == [[*found, away] for found in terms]
    assert "affinity" not in template(make_resource())["spec"]


def test_the_service_leaves_the_admin_port_out(make_resource: Make) -> None:
    child = service(make_resource())
    assert child["metadata"]["name"] == "chat"
    (port,) = child["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (80, "http")


def test_only_the_operator_reaches_the_admin_port(make_resource: Make) -> None:
    everyone, operator = network_policy(make_resource(), "kvtide-system")["spec"]["ingress"]
    assert (everyone["ports"][0]["port"], "from" in everyone) == (8000, False)
    assert operator["ports"][0]["port"] == 8001
    (peer,) = operator["from"]
    assert peer["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "kvtide-system"}
    assert peer["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "kvtide-operator"}


def test_the_token_survives_the_secret(make_resource: Make) -> None:
    assert token_of(admin_secret(make_resource(), "s3cret")) == "s3cret"
    assert token_of(None) is None
