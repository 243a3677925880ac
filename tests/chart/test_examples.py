"""Every example fits the CRD's schema as the API server reads it under strict validation, and fits its device."""

import copy
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from kvtide_operator.api.spec import LLMDeploymentSpec
from kvtide_operator.plan.device import resolve_device
from kvtide_operator.plan.planner import make_plan
from kvtide_sizing.models.catalog import builtin
from tests.chart.conftest import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
Schema = dict[str, Any]


def strict(schema: Schema) -> Schema:
    """The schema with unknown fields refused, except where it keeps them: what `--validate=strict` does."""
    closed = dict(schema)
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            closed[key] = strict(schema[key])
    if "properties" in schema:
        closed["properties"] = {name: strict(field) for name, field in schema["properties"].items()}
        closed["additionalProperties"] = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
    return closed


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    crd = yaml.safe_load((ROOT / "crds" / "llmdeployments.yaml").read_text())
    (version,) = crd["spec"]["versions"]
    schema = strict(version["schema"]["openAPIV3Schema"])
    # The API server knows the metadata of every kind, which a CRD's schema leaves open.
    schema["properties"]["metadata"] = {"type": "object", "required": ["name"]}
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_fits_the_schema(validator: jsonschema.Draft202012Validator, path: Path) -> None:
    resource = yaml.safe_load(path.read_text())
    assert (resource["apiVersion"], resource["kind"]) == ("serving.kvtide.dev/v1alpha1", "LLMDeployment")
    assert [error.message for error in validator.iter_errors(resource)] == []


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("kvCache", {"precison": "BF16"}, "'precison' was unexpected"),
        ("kvCache", {"blockSizeTokens": 48}, "48 is not one of"),
        ("device", {"kind": "TPU"}, "'TPU' is not one of"),
        ("model", {"uri": 135}, "is not of type 'string'"),
    ],
)
def test_the_validator_refuses_what_the_api_server_would(
    validator: jsonschema.Draft202012Validator, field: str, value: Schema, message: str
) -> None:
    resource = copy.deepcopy(yaml.safe_load(EXAMPLES[0].read_text()))
    resource["spec"][field] = value
    assert any(message in error.message for error in validator.iter_errors(resource))


@pytest.mark.parametrize(
    ("name", "shape", "at_least_tokens", "at_most_tokens"),
    [
        # What the comments in the files say, with room for a plan that estimates overhead anew.
        ("smollm2", "smollm2-135m", 6_000, 10_000),
        ("smollm2-hub", "smollm2-135m", 48_000, 56_000),
        ("smollm2-int8", "smollm2-135m", 2_500, 3_700),
        ("llama-2-13b-a100", "llama-2-13b", 62_000, 70_000),
    ],
)
def test_an_example_fits_its_device_as_its_comments_say(
    name: str, shape: str, at_least_tokens: int, at_most_tokens: int
) -> None:
    resource = yaml.safe_load((ROOT / "examples" / f"{name}.yaml").read_text())
    spec = LLMDeploymentSpec.model_validate(resource["spec"])
    plan = make_plan(spec, builtin(shape), resolve_device(spec, None))
    assert at_least_tokens <= plan.kv.capacity_tokens <= at_most_tokens
    assert plan.max_context_tokens == spec.workload.max_context_tokens
