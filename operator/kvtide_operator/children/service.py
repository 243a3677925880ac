"""The Service that clients call, under the resource's own name."""

from kvtide_operator.api import names
from kvtide_operator.api.resource import LLMDeployment
from kvtide_operator.children.manifest import Manifest, child


def service(resource: LLMDeployment) -> Manifest:
    """Port 80 to the workers' HTTP port. The admin port is not in it."""
    return child(
        resource,
        "v1",
        "Service",
        resource.name,
        {
            "spec": {
                "type": "ClusterIP",
                "selector": names.worker_labels(resource.name),
                "ports": [{"name": "http", "port": names.SERVICE_PORT, "targetPort": "http", "protocol": "TCP"}],
            }
        },
    )
