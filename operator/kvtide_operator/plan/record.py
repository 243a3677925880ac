"""What is kept in the ConfigMap NAME-plan: plans and pod templates by intent, shapes by model.

    plan-<intent>.json       the plan; mounted into the workers of that intent as /etc/kvtide/plan.json
    template-<intent>.json   the pod template rendered from it
    shape-<model>.json       what the inspect pod read from the model's headers

The same intent gives the same template for ever, whatever version of the operator looks at it.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True)
class Planned:
    """The plan of one intent, as JSON, and the pod template made from it."""

    plan: Json
    template: Json

    @property
    def image(self) -> str | None:
        """The workers' image, None in a template that has none."""
        containers = (self.template.get("spec") or {}).get("containers") or [{}]
        image: str | None = containers[0].get("image")
        return image


@dataclass(frozen=True)
class Record:
    """The ConfigMap's content."""

    planned: Mapping[str, Planned] = field(default_factory=dict)
    shapes: Mapping[str, Json] = field(default_factory=dict)

    @classmethod
    def from_config_map(cls, config_map: Mapping[str, Any] | None) -> "Record":
        """Reads a live ConfigMap. What cannot be read counts as absent, and is made again."""
        data: Mapping[str, str] = (config_map or {}).get("data") or {}
        plans, templates, shapes = (_read(data, kind) for kind in ("plan", "template", "shape"))
        planned = {intent: Planned(plan, templates[intent]) for intent, plan in plans.items() if intent in templates}
        return cls(planned, shapes)

    def to_data(self) -> dict[str, str]:
        """The ConfigMap's `data`."""
        data = {f"shape-{model}.json": _write(shape) for model, shape in self.shapes.items()}
        for intent, planned in self.planned.items():
            data[f"plan-{intent}.json"] = _write(planned.plan)
            data[f"template-{intent}.json"] = _write(planned.template)
        return data

    def with_planned(self, intent: str, planned: Planned) -> "Record":
        """The record with the plan of one more intent."""
        return replace(self, planned={**self.planned, intent: planned})

    def with_shape(self, model: str, shape: Json) -> "Record":
        """The record with the shape of the model; older shapes go, they can be read again."""
        return replace(self, shapes={model: shape})

    def keep(self, intents: Iterable[str]) -> "Record":
        """The record with no other intents than these: the present one, and those that pods still run."""
        wanted = set(intents)
        return replace(self, planned={key: value for key, value in self.planned.items() if key in wanted})


def _read(data: Mapping[str, str], kind: str) -> dict[str, Json]:
    found = {}
    for key, text in data.items():
        if key.startswith(f"{kind}-") and key.endswith(".json"):
            try:
                value = json.loads(text)
            except json.JSONDecodeError:
                continue
            if isinstance(value, dict):
                found[key.removeprefix(f"{kind}-").removesuffix(".json")] = value
    return found


def _write(value: Json) -> str:
    return json.dumps(value, indent=1, sort_keys=True)
