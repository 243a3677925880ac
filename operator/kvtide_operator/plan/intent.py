"""Which part of a spec restarts workers when it changes, and the hash that stands for it."""

from kvtide_operator.api.resource import LLMDeployment
from kvtide_operator.api.spec import LLMDeploymentSpec
from kvtide_operator.children.manifest import content_hash
from kvtide_operator.plan.record import Basis, Record
from kvtide_operator.plan.references import References, references_of

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


def basis_of(resource: LLMDeployment, references: References) -> Basis | None:
    """What the present intent is made from, None where the spec names no Secret and no ConfigMap."""
    content: dict[str, str | None] = {}
    for reference in references_of(resource.spec):
        found = references.get(reference)
        looked = "" if reference in references else None
        content[f"{reference.kind}/{reference.name}/{reference.key}"] = content_hash(found) if found else looked
    return Basis(intent_hash(resource), content) if content else None


def recorded_intent(
    resource: LLMDeployment, references: References, record: Record, running: str
) -> tuple[str, Basis | None]:
    """The intent of the resource as it stands, and what it is made from.

    running: the intent of the Deployment, empty where there is none

    A recorded intent goes on where nothing is known to have changed since: where a reference cannot be read now, and
    where it could not when the intent was made, or was not looked at, as by versions that knew no references.
    """
    now, fresh = basis_of(resource, references), intent_hash(resource, references)
    if now is None:
        return fresh, None
    for intent in (fresh, running, *sorted(record.planned)):
        planned = record.planned.get(intent)
        basis = planned and (planned.basis or _basis_before(intent, fresh, now))
        if basis and basis.agrees(now):
            return intent, basis.completed(now)
    return fresh, now


def _basis_before(intent: str, fresh: str, now: Basis) -> Basis | None:
    """The basis of an intent that a version before kept without one."""
    if intent == fresh:
        return now
    return Basis(now.spec, dict.fromkeys(now.content)) if intent == now.spec else None


def model_hash(spec: LLMDeploymentSpec) -> str:
    """The hash of what the inspect pod looks at, and of how it gets there."""
    return content_hash(
        {
            # How weights are held once they are read changes nothing of what the files say.
            "model": {key: value for key, value in spec.model.to_json().items() if key != "weightPrecision"},
            "worker": spec.worker.model_dump(by_alias=True, mode="json", exclude_defaults=True),
        }
    )
