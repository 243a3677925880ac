"""The NetworkPolicy of the workers."""

from kvtide_operator.api import names
from kvtide_operator.api.resource import LLMDeployment
from kvtide_operator.children.manifest import Manifest, child


def network_policy(resource: LLMDeployment, operator_namespace: str) -> Manifest:
    """Anyone may ask for answers and metrics; only the operator's pods reach the admin port."""
    operator = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": operator_namespace}},
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": names.OPERATOR_APP}},
    }
    return child(
        resource,
        "networking.k8s.io/v1",
        "NetworkPolicy",
        resource.name,
        {
            "spec": {
                "podSelector": {"matchLabels": names.worker_labels(resource.name)},
                "policyTypes": ["Ingress"],
                "ingress": [
                    {"ports": [{"port": names.HTTP_PORT, "protocol": "TCP"}]},
                    {"from": [operator], "ports": [{"port": names.ADMIN_PORT, "protocol": "TCP"}]},
                ],
            }
        },
    )
