"""From pydantic's JSON schema to the structural OpenAPI v3 schema that a CRD takes."""

from typing import Any

from pydantic import BaseModel

Schema = dict[str, Any]

# JSON Schema words that a structural schema does not know, or that say nothing there.
DROPPED = ("title", "examples", "$defs")
# How a person reads a field: what it is, what it takes, what it is when left out.
FIRST = ("type", "description", "enum", "pattern", "default", "required")


def structural(model: type[BaseModel]) -> Schema:
    """The model as a structural schema: references resolved, nullable unions unfolded, no titles."""
    raw = model.model_json_schema(by_alias=True, mode="validation")
    result = _convert(raw, raw.get("$defs", {}))
    assert isinstance(result, dict)
    return result


def _convert(node: Any, definitions: Schema) -> Any:
    if isinstance(node, list):
        return [_convert(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    node = _unfold(dict(node), definitions)
    result: Schema = {}
    for key, value in node.items():
        if key in DROPPED:
            continue
        if key == "properties":
            result[key] = {name: _convert(child, definitions) for name, child in value.items()}
        elif key in ("items", "additionalProperties"):
            result[key] = _convert(value, definitions)
        else:
            result[key] = value
    if result.get("default", ...) is None:
        del result["default"]
    if result.get("additionalProperties") in (True, False):
        del result["additionalProperties"]
    return {key: result[key] for key in FIRST if key in result} | result


def _unfold(node: Schema, definitions: Schema) -> Schema:
    """Resolves a reference and `X | None`; what stands beside either wins over what it leads to."""
    if "$ref" in node:
        target = definitions[node.pop("$ref").removeprefix("#/$defs/")]
        return _unfold(_merge(dict(target), node), definitions)
    if "anyOf" in node:
        others = [choice for choice in node.pop("anyOf") if choice != {"type": "null"}]
        assert len(others) == 1, f"a structural schema has no unions: {others}"
        return _unfold(_merge(dict(others[0]), node), definitions)
    return node


def _merge(base: Schema, over: Schema) -> Schema:
    validations = base.get("x-kubernetes-validations", []) + over.get("x-kubernetes-validations", [])
    merged = base | over
    if validations:
        merged["x-kubernetes-validations"] = validations
    return merged
