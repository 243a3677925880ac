"""An LLMDeployment as read from the cluster."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pydantic

from kvtide_operator.api.spec import LLMDeploymentSpec
from kvtide_operator.api.status import Status


@dataclass(frozen=True)
class LLMDeployment:
    """The resource: who it is, what is wanted, and what was last reported."""

    namespace: str
    name: str
    uid: str
    generation: int
    spec: LLMDeploymentSpec
    status: Status

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> "LLMDeployment":
        """Reads the API server's JSON. Raises pydantic.ValidationError where the spec does not fit the model."""
        metadata = document["metadata"]
        return cls(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            generation=metadata.get("generation", 0),
            spec=LLMDeploymentSpec.model_validate(document.get("spec", {})),
            status=last_status(document),
        )

    @property
    def served_name(self) -> str:
        """The model's name in requests and answers."""
        return self.spec.model.served_name or self.name


def last_status(document: Mapping[str, Any]) -> Status:
    """What was last reported. A status that an older version wrote and this one cannot read is made anew."""
    try:
        return Status.model_validate(document.get("status") or {})
    except pydantic.ValidationError:
        return Status()
