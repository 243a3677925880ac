"""What all children have in common: who owns them, their labels, and the mark of what was applied."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from kvtide_operator.api import names
from kvtide_operator.api.resource import LLMDeployment

Manifest = dict[str, Any]


def content_hash(content: object) -> str:
    """Twelve hexadecimal digits of the canonical JSON of `content`."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def owner_reference(resource: LLMDeployment) -> Manifest:
    """Makes the resource the child's controller.

    blockOwnerDeletion stays out: it would ask for rights on finalizers, and nothing has to wait.
    """
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": resource.name,
        "uid": resource.uid,
        "controller": True,
    }


def common_labels(resource: LLMDeployment, app: str = names.WORKER_APP) -> dict[str, str]:
    """The labels of every child, and of the pods."""
    return {
        "app.kubernetes.io/name": app,
        "app.kubernetes.io/part-of": names.PART_OF,
        "app.kubernetes.io/instance": resource.name,
        names.NAME_LABEL: resource.name,
    }


def child(resource: LLMDeployment, api_version: str, kind: str, name: str, body: Mapping[str, Any]) -> Manifest:
    """A child's manifest: `body` under the metadata that all share, marked with the hash of the whole."""
    manifest: Manifest = {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": resource.namespace,
            "labels": common_labels(resource),
            "ownerReferences": [owner_reference(resource)],
        },
        **body,
    }
    manifest["metadata"]["annotations"] = {names.APPLIED_ANNOTATION: content_hash(manifest)}
    return manifest


def owned_by(manifest: Mapping[str, Any], resource: LLMDeployment) -> bool:
    """Whether this very resource, not an earlier one of the same name, owns the object."""
    owners = manifest["metadata"].get("ownerReferences") or []
    return any(owner.get("uid") == resource.uid for owner in owners)
