"""The Secrets and ConfigMaps that a worker is made from beside the spec, by where the spec names them."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from kvtide_operator.api.spec import LLMDeploymentSpec
from kvtide_sizing.errors import SizingError

# A reference and the hash of what it leads to; None where there is nothing. One that may not be read is left out.
References = Mapping["Reference", str | None]


class ReferenceMissing(SizingError):
    """The spec names a Secret or a ConfigMap, or a key of one, that is not there."""

    reason: ClassVar[str] = "ReferenceMissing"


@dataclass(frozen=True, order=True)
class Reference:
    """A Secret or a ConfigMap in the resource's namespace.

    key:       the one key that the worker gets, empty where it gets all
    where:     the field of the spec that names it
    optional:  the pod starts without it, too
    """

    kind: str
    name: str
    key: str
    where: str
    optional: bool = False

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" + (f" with the key {self.key}" if self.key else "")

    def content_of(self, live: Mapping[str, Any] | None) -> str | None:
        """The hash of what the worker gets of this live object, None where that is not there.

        Salted with the object's uid: whoever may read a pod's labels, and nothing else, can guess no secret by it.
        """
        data = {**((live or {}).get("data") or {}), **((live or {}).get("binaryData") or {})}
        if live is None or (self.key and self.key not in data):
            return None
        wanted = {self.key: data[self.key]} if self.key else data
        text = json.dumps([live["metadata"].get("uid"), wanted], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def references_of(spec: LLMDeploymentSpec) -> tuple[Reference, ...]:
    """What the spec names, each once, in a fixed order."""
    return tuple(sorted(set(_named(spec))))


def check(found: References) -> None:
    """Raises ReferenceMissing for what a pod could not start without."""
    for reference in sorted(found):
        if found[reference] is None and not reference.optional:
            raise ReferenceMissing(
                f"{reference.where} names the {reference}, which does not exist in the resource's namespace: create it;"
                f" workers that run already go on"
            )


def unreadable(spec: LLMDeploymentSpec, found: References) -> list[str]:
    """What the operator may not read of what the spec names, and what follows from that, one message each."""
    return [
        f"{reference.where} names the {reference}, which the operator may not read: workers go on as they are, and"
        f" another content of it rolls none of them; grant get on {reference.kind.lower()}s in the resource's namespace"
        for reference in references_of(spec)
        if reference not in found
    ]


def _named(spec: LLMDeploymentSpec) -> Iterator[Reference]:
    token = spec.model.auth_secret_ref
    if token is not None:
        yield Reference("Secret", token.name, token.key, "model.authSecretRef")
    for entry in spec.worker.env or []:
        source = entry.get("valueFrom") or {}
        where = f"worker.env {entry.get('name', '')}"
        for kind, field in (("Secret", "secretKeyRef"), ("ConfigMap", "configMapKeyRef")):
            yield from _reference(kind, source.get(field), "name", where, with_key=True)
    for volume in spec.worker.volumes or []:
        yield from _mounted(volume, f"worker.volumes {volume.get('name', '')}")


def _mounted(volume: Mapping[str, Any], where: str) -> Iterator[Reference]:
    yield from _reference("Secret", volume.get("secret"), "secretName", where)
    yield from _reference("ConfigMap", volume.get("configMap"), "name", where)
    for source in (volume.get("projected") or {}).get("sources") or []:
        yield from _reference("Secret", source.get("secret"), "name", where)
        yield from _reference("ConfigMap", source.get("configMap"), "name", where)


def _reference(kind: str, said: Any, name_field: str, where: str, with_key: bool = False) -> Iterator[Reference]:
    """What is no reference is the API server's matter: it refuses the Deployment, in its own words."""
    if isinstance(said, Mapping) and isinstance(said.get(name_field), str):
        key = str(said.get("key", "")) if with_key else ""
        yield Reference(kind, said[name_field], key, where, bool(said.get("optional")))
