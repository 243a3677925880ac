"""Which part of a spec restarts workers when it changes, and the hash that stands for it."""

from kvtide_operator.api.resource import LLMDeployment
from kvtide_operator.api.spec import LLMDeploymentSpec
from kvtide_operator.children.manifest import content_hash

# Replicas and autoscaling are live: they change how many workers there are, never what a worker is.
LIVE_FIELDS = {"replicas", "autoscaling"}


def intent_hash(resource: LLMDeployment) -> str:
    """The hash of everything that a worker is made from, as the user says it.

    Defaults are left out, so that a field which a later version adds changes no hash; the operator's version and
    its default image are no part of it either. An operator upgrade therefore restarts no worker.
    """
    wanted = resource.spec.model_dump(by_alias=True, mode="json", exclude_defaults=True, exclude=LIVE_FIELDS)
    return content_hash({"name": resource.name, "spec": wanted})


def model_hash(spec: LLMDeploymentSpec) -> str:
    """The hash of what the inspect pod looks at, and of how it gets there."""
    return content_hash(
        {
            "model": spec.model.to_json(),
            "worker": spec.worker.model_dump(by_alias=True, mode="json", exclude_defaults=True),
        }
    )
