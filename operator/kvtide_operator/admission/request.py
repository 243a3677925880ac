"""What the API server asks, and how it is answered: the AdmissionReview of admission.k8s.io/v1."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

import pydantic

from kvtide_operator.api.resource import LLMDeployment
from kvtide_operator.plan.intent import LIVE_FIELDS, intent_hash

Json = dict[str, Any]
API_VERSION = "admission.k8s.io/v1"
# The status code of a refusal: the request is well-formed, what it asks for is not possible.
UNPROCESSABLE = 422

# RFC 1123, as the API server checks a namespace (one label) and a resource's name (a subdomain).
_LABEL = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_NAMESPACE, _NAME = re.compile(_LABEL), re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_LONGEST_NAME = 253


class NotAReview(Exception):
    """The body is no AdmissionReview that asks something; the message says what it lacks."""


@dataclass(frozen=True)
class Request:
    """One object that is to be created or changed; `old` is what it is now, None on CREATE."""

    uid: str
    namespace: str
    name: str
    new: Json
    old: Json | None

    @classmethod
    def parse(cls, review: Any) -> "Request":
        """Reads an AdmissionReview. Raises NotAReview."""
        asked = review.get("request") if isinstance(review, Mapping) else None
        if not isinstance(asked, Mapping) or review.get("apiVersion") != API_VERSION:
            raise NotAReview(f"not an AdmissionReview of {API_VERSION} with a request")
        uid, new, old = asked.get("uid"), asked.get("object"), asked.get("oldObject")
        if not isinstance(uid, str) or not uid or not _is_object(new) or not (old is None or _is_object(old)):
            raise NotAReview("the request needs a uid, and objects with metadata and spec")
        namespace, name = asked.get("namespace", ""), asked.get("name", "")
        for document in ({"namespace": namespace, "name": name}, new["metadata"], (old or new)["metadata"]):
            _check_names(document)
        return cls(uid, namespace, name, new, old)

    def resource(self) -> LLMDeployment:
        """What is wanted. Raises pydantic.ValidationError where this version cannot read it."""
        return self._read(self.new)

    @property
    def keeps_intent(self) -> bool:
        """Whether the workers stay as they are: labels, replicas and autoscaling are changed without a new plan.

        So is an object that is going: what removes its finalizers must not be asked for a plan.
        """
        if "deletionTimestamp" in self.new["metadata"]:
            return True
        if self.old is None:
            return False
        if _without_live_fields(self.new) == _without_live_fields(self.old):
            return True
        try:
            return intent_hash(self._read(self.new)) == intent_hash(self._read(self.old))
        except pydantic.ValidationError:
            return False

    def _read(self, document: Json) -> LLMDeployment:
        # The status stays out: what was wrong with the spec as it was says nothing of this one.
        known = {"namespace": self.namespace, "name": self.name, "uid": ""}
        return LLMDeployment.parse({"metadata": {**known, **document["metadata"]}, "spec": document["spec"]})


@dataclass(frozen=True)
class Answer:
    """Admitted or refused.

    reason, message:  of a refusal, in the words of the condition Planned
    warnings:         what kubectl prints though it is admitted
    """

    allowed: bool
    reason: str = ""
    message: str = ""
    warnings: tuple[str, ...] = ()

    def to_review(self, uid: str) -> Json:
        """The AdmissionReview that answers the request with this uid."""
        response: Json = {"uid": uid, "allowed": self.allowed}
        if not self.allowed:
            response["status"] = {"code": UNPROCESSABLE, "reason": self.reason, "message": self.message}
        if self.warnings:
            response["warnings"] = list(self.warnings)
        return {"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response}


def _is_object(document: Any) -> TypeGuard[Json]:
    return isinstance(document, Mapping) and all(isinstance(document.get(key), Mapping) for key in ("metadata", "spec"))


def _check_names(metadata: Mapping[str, Any]) -> None:
    """They become part of what the API server is asked, so they must be names. Empty ones are to be generated yet."""
    for key, pattern in (("namespace", _NAMESPACE), ("name", _NAME)):
        text = metadata.get(key, "")
        good = isinstance(text, str) and len(text) <= _LONGEST_NAME and (text == "" or pattern.fullmatch(text))
        if not good:
            raise NotAReview(f"{key} {str(text)[:_LONGEST_NAME]!r} is no DNS name in lower case")


def _without_live_fields(document: Json) -> Json:
    return {key: value for key, value in document["spec"].items() if key not in LIVE_FIELDS}
