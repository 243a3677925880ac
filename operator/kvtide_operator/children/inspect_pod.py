"""The short-lived pod that reads a model's headers where the operator cannot: with the worker's image and volumes."""

from kvtide_operator.api import names
from kvtide_operator.api.resource import LLMDeployment
from kvtide_operator.children import pod
from kvtide_operator.children.manifest import Manifest, common_labels, owner_reference

TERMINATION_LOG = "/dev/termination-log"
DEADLINE_S = 300


def inspect_name(resource: LLMDeployment) -> str:
    """The pod's name."""
    return f"{resource.name}-inspect"


def inspect_pod(resource: LLMDeployment, model: str, image: str) -> Manifest:
    """The pod for the model with this hash. Raises InvalidModelUri where the model's URI cannot be read.

    It runs once and is not restarted: the operator reads its end, and decides when to look again.
    """
    volumes, mounts = pod.volumes(resource)
    container = {
        "name": "inspect",
        "image": image,
        "command": ["kvtide", "inspect"],
        "args": ["--model", resource.spec.model.uri, "--output", TERMINATION_LOG],
        "env": pod.environment(resource),
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
        "volumeMounts": mounts,
        "securityContext": pod.HARDENED_CONTAINER,
        "terminationMessagePath": TERMINATION_LOG,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    labels = {**common_labels(resource, names.INSPECT_APP), names.MODEL_LABEL: model}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": inspect_name(resource),
            "namespace": resource.namespace,
            "labels": labels,
            "ownerReferences": [owner_reference(resource)],
        },
        "spec": {
            **pod.HARDENED_POD,
            **pod.placement(resource),
            "restartPolicy": "Never",
            "activeDeadlineSeconds": DEADLINE_S,
            "containers": [container],
            "volumes": volumes,
        },
    }
