"""The Deployment of the workers."""

from kvtide_operator.api import names
from kvtide_operator.api.resource import LLMDeployment
from kvtide_operator.children.manifest import Manifest, child
from kvtide_operator.children.worker_template import startup_budget_s


def deployment(resource: LLMDeployment, template: Manifest, replicas: int, weights_bytes: int) -> Manifest:
    """Replaces pods one for one: a surge would ask for a device that is not there, and wait for it for ever."""
    return child(
        resource,
        "apps/v1",
        "Deployment",
        resource.name,
        {
            "spec": {
                "replicas": replicas,
                "revisionHistoryLimit": 3,
                "progressDeadlineSeconds": startup_budget_s(weights_bytes) + 60,
                "selector": {"matchLabels": names.worker_labels(resource.name)},
                "strategy": {
                    "type": "RollingUpdate",
                    "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1},
                },
                "template": template,
            }
        },
    )
