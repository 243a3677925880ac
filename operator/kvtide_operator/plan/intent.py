"""Which part of a spec restarts workers when it changes, and the hash that stands for it."""

from kvtide_operator.api.resource import LLMDeployment
from kvtide_operator.api.spec import LLMDeploymentSpec
from kvtide_operator.children.manifest import content_hash
from kvtide_operator.plan.references import References

# Replicas and autoscaling are live: they change how many workers there are, never what a worker is.
LIVE_FIELDS = {"replicas", "autoscaling"}


def intent_hash(resource: LLMDeployment, references: References | None = None) -> str:
    """The hash of everything that a worker is made from, as the user says it.

    references: what the Secrets and ConfigMaps that the spec names hold, as hashes; another content is another intent

    Defaults are left out, so that a field which a later version adds changes no hash; the operator's version and
    its default image are no part of it either. An operator upgrade therefore restarts no worker.
    """
    wanted = resource.spec.model_dump(by_alias=True, mode="json", exclude_defaults=True, exclude=LIVE_FIELDS)
    intent = {"name": resource.name, "spec": wanted}
    held = {f"{ref.kind}/{ref.name}/{ref.key}": found for ref, found in (references or {}).items() if found}
    # Where nothing is named, the hash is that of versions which knew no references.
    return content_hash({**intent, "references": held} if held else intent)


def model_hash(spec: LLMDeploymentSpec) -> str:
    """The hash of what the inspect pod looks at, and of how it gets there."""
    return content_hash(
        {
            # How weights are held once they are read changes nothing of what the files say.
            "model": {key: value for key, value in spec.model.to_json().items() if key != "weightPrecision"},
            "worker": spec.worker.model_dump(by_alias=True, mode="json", exclude_defaults=True),
        }
    )
