"""Which children a resource has, by kind and name: what is looked for is what is made."""

from kvtide_operator.api.resource import LLMDeployment
from kvtide_operator.children.worker_template import admin_secret_name, plan_name


def child_names(resource: LLMDeployment) -> list[tuple[str, str]]:
    """Kind and name of every child that is compared with what is wanted."""
    return [
        ("Deployment", resource.name),
        ("Service", resource.name),
        ("Secret", admin_secret_name(resource)),
        ("ConfigMap", plan_name(resource)),
        ("PodDisruptionBudget", resource.name),
        ("NetworkPolicy", resource.name),
    ]
