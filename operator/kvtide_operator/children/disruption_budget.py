"""The PodDisruptionBudget of the workers."""

from kvtide_operator.api import names
from kvtide_operator.api.resource import LLMDeployment
from kvtide_operator.children.manifest import Manifest, child


def disruption_budget(resource: LLMDeployment) -> Manifest:
    """Lets one worker go at a time, the only one included, and any that is broken: a node must always be drainable."""
    return child(
        resource,
        "policy/v1",
        "PodDisruptionBudget",
        resource.name,
        {
            "spec": {
                "maxUnavailable": 1,
                "unhealthyPodEvictionPolicy": "AlwaysAllow",
                "selector": {"matchLabels": names.worker_labels(resource.name)},
            }
        },
    )
