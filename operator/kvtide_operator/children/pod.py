"""What the worker's pods and the inspect pod share: the model's place, credentials, hardening, the user's additions."""

from typing import Any

from kvtide_operator.api.resource import LLMDeployment
from kvtide_sizing.models.model_uri import PVC_ROOT, ModelUri

USER_ID = 10001
CACHE_PATH = "/var/cache/kvtide"
SCRATCH_PATH = "/tmp"  # noqa: S108  an emptyDir of the pod's own

HARDENED_POD: dict[str, Any] = {
    "automountServiceAccountToken": False,
    "enableServiceLinks": False,
    "securityContext": {
        "runAsNonRoot": True,
        "runAsUser": USER_ID,
        "runAsGroup": USER_ID,
        "seccompProfile": {"type": "RuntimeDefault"},
    },
}
HARDENED_CONTAINER: dict[str, Any] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def environment(resource: LLMDeployment) -> list[dict[str, Any]]:
    """The container's env: where it may write, the model's token, then what the user adds."""
    env: list[dict[str, Any]] = [
        {"name": "HOME", "value": SCRATCH_PATH},
        {"name": "KVTIDE_MODEL_CACHE", "value": CACHE_PATH},
    ]
    token = resource.spec.model.auth_secret_ref
    if token is not None:
        reference = {"name": token.name, "key": token.key}
        env.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": reference}})
    return env + (resource.spec.worker.env or [])


def volumes(resource: LLMDeployment) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Volumes and their mounts: places to write, the claim of a pvc:// model, then what the user adds.

    Raises InvalidModelUri where the model's URI cannot be read.
    """
    found: list[dict[str, Any]] = [
        {"name": "tmp", "emptyDir": {}},
        {"name": "model-cache", "emptyDir": {}},
    ]
    mounts: list[dict[str, Any]] = [
        {"name": "tmp", "mountPath": SCRATCH_PATH},
        {"name": "model-cache", "mountPath": CACHE_PATH},
    ]
    claim = ModelUri.parse(resource.spec.model.uri).claim
    if claim is not None:
        found.append({"name": "model", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}})
        mounts.append({"name": "model", "mountPath": f"{PVC_ROOT}/{claim}", "readOnly": True})
    worker = resource.spec.worker
    return found + (worker.volumes or []), mounts + (worker.volume_mounts or [])


def placement(resource: LLMDeployment, avoid: tuple[str, tuple[str, ...]] | None = None) -> dict[str, Any]:
    """Where pods may run, as the user says.

    avoid: a label and the values of nodes that pods must keep away from
    """
    worker = resource.spec.worker
    wanted = {
        "nodeSelector": worker.node_selector,
        "tolerations": worker.tolerations,
        "affinity": worker.affinity if avoid is None else _away_from(*avoid, worker.affinity or {}),
        "priorityClassName": worker.priority_class_name,
        "runtimeClassName": worker.runtime_class_name,
        "imagePullSecrets": [ref.to_json() for ref in worker.image_pull_secrets or []],
    }
    return {key: value for key, value in wanted.items() if value}


def _away_from(key: str, values: tuple[str, ...], affinity: dict[str, Any]) -> dict[str, Any]:
    """The affinity with one requirement more: a node must match one of the terms, and all expressions of that."""
    away = {"key": key, "operator": "NotIn", "values": list(values)}
    of_nodes = affinity.get("nodeAffinity") or {}
    required = of_nodes.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms = [
        {**term, "matchExpressions": [*(term.get("matchExpressions") or []), away]}
        for term in required.get("nodeSelectorTerms") or [{}]
    ]
    pinned = {**of_nodes, "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {**affinity, "nodeAffinity": pinned}
