"""The Deployment of the workers."""

from kvtide_operator.api import names
from kvtide_operator.api.resource import LLMDeployment
from kvtide_operator.children.manifest import Manifest, child
from kvtide_operator.children.worker_template import startup_budget_s

NO_SURGE = {"maxSurge": 0, "maxUnavailable": 1}


def deployment(
    resource: LLMDeployment, template: Manifest, replicas: int, weights_bytes: int, surge: bool = False
) -> Manifest:
    """Replaces pods one for one, the old one first: a surge would ask for a device that is not there, and wait for it.

    surge: there is room for the new pod beside the old one, so that the old one goes last
    """
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
                    "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0} if surge else NO_SURGE,
                },
                "template": template,
            }
        },
    )
