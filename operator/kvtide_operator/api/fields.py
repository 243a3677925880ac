"""The building blocks of the model: a base that speaks camelCase, quantities, references, escape hatches."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel

MAX_INT32 = 2**31 - 1


class Api(BaseModel):
    """A part of the resource: snake_case here, camelCase in YAML. Unknown fields are the API server's matter."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True)

    def to_json(self) -> dict[str, Any]:
        """The part as it stands in YAML, without the fields that are not set."""
        return self.model_dump(by_alias=True, exclude_none=True, mode="json")


def rules(*pairs: tuple[str, str]) -> dict[str, Any]:
    """CEL rules with their messages, for a `json_schema_extra`."""
    return {"x-kubernetes-validations": [{"rule": rule, "message": message} for rule, message in pairs]}


def one_of(choices: Sequence[int]) -> Callable[[int], int]:
    """A validator for one of these numbers, where they are known elsewhere than in a type."""

    def check(value: int) -> int:
        if value not in choices:
            raise ValueError(f"{value} is none of {', '.join(map(str, choices))}")
        return value

    return check


# Parts of a pod template that belong to Kubernetes, not to us: passed on as they are, and checked by the API
# server when the Deployment is applied.
PodField = Annotated[dict[str, Any], WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True})]

ResourceAmount = Annotated[
    int | str,
    WithJsonSchema({"x-kubernetes-int-or-string": True}),
]

MemoryQuantity = Annotated[
    str,
    Field(
        min_length=1,
        max_length=32,
        json_schema_extra=rules(
            (
                "self.matches('^[0-9]+([.][0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)?$')",
                "memory is a number with Ki, Mi, Gi or Ti (powers of 1024) or k, M, G or T, such as 40Gi",
            )
        ),
    ),
]


class SecretKeyRef(Api):
    """A key of a Secret in the resource's namespace."""

    name: str = Field(min_length=1, max_length=253, description="Name of the Secret.")
    key: str = Field(
        default="token", min_length=1, max_length=253, description="Key in the Secret that holds the token."
    )


class LocalRef(Api):
    """An object of the resource's namespace, by name."""

    name: str = Field(min_length=1, max_length=253, description="Name of the object.")


class Resources(Api):
    """Requests and limits of the worker's container."""

    requests: Mapping[str, ResourceAmount] | None = Field(
        default=None, description="What the scheduler reserves, by resource name."
    )
    limits: Mapping[str, ResourceAmount] | None = Field(
        default=None, description="What the container may use at most, by resource name."
    )
