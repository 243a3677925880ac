"""The names that the cluster knows us by: group, kind, labels, annotations, ports."""

GROUP = "serving.kvtide.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "LLMDeployment"
PLURAL = "llmdeployments"
SINGULAR = "llmdeployment"

FIELD_MANAGER = "kvtide-operator"
PART_OF = "kvtide"
WORKER_APP = "kvtide-worker"
INSPECT_APP = "kvtide-inspect"
OPERATOR_APP = "kvtide-operator"

# The label that ties a child or a pod to its LLMDeployment; its value is the resource's name.
NAME_LABEL = f"{GROUP}/name"
# On the pod template: the hash of the intent that the template was rendered for.
INTENT_LABEL = f"{GROUP}/intent"
# On the inspect pod: the hash of the model that it looks at.
MODEL_LABEL = f"{GROUP}/model"
# On every child: the hash of the manifest as applied, so that an unchanged child costs no write.
APPLIED_ANNOTATION = f"{GROUP}/applied"
DELETION_COST_ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"

HTTP_PORT = 8000
ADMIN_PORT = 8001
SERVICE_PORT = 80


def worker_labels(name: str) -> dict[str, str]:
    """The labels that select the worker pods of one resource, and nothing else."""
    return {"app.kubernetes.io/name": WORKER_APP, NAME_LABEL: name}


def worker_selector(name: str) -> str:
    """`worker_labels` as a label selector string, as `status.selector` and list calls want it."""
    return ",".join(f"{key}={value}" for key, value in worker_labels(name).items())
