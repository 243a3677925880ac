"""What is kept in the ConfigMap NAME-plan: plans and pod templates by intent, shapes by model.

    plan-<intent>.json       the plan; mounted into the workers of that intent as /etc/kvtide/plan.json
    template-<intent>.json   the pod template rendered from it
    basis-<intent>.json      which content of Secrets and ConfigMaps it stands for, where the spec names any
    shape-<model>.json       what the inspect pod read from the model's headers

The same intent gives the same template for ever, whatever version of the operator looks at it.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from kvtide_sizing.plan.record import EARLIER_KEYS

Json = dict[str, Any]


@dataclass(frozen=True)
class Basis:
    """What an intent was made from.

    spec:     the hash of the spec alone
    content:  of each Secret or ConfigMap that the spec names, a hash of what the workers get of it: empty where it is
              not there, None where nobody could look
    """

    spec: str
    content: Mapping[str, str | None]

    def agrees(self, other: "Basis") -> bool:
        """Whether both may be of one intent: what only one of them knows speaks against nothing."""
        known = [(self.content.get(key), found) for key, found in other.content.items()]
        return self.spec == other.spec and all(None in pair or pair[0] == pair[1] for pair in known)

    def completed(self, other: "Basis") -> "Basis":
        """The same, with what was not known of it taken from one that agrees."""
        known = {key: value for key, value in self.content.items() if value is not None}
        return replace(self, content={**other.content, **known})


@dataclass(frozen=True)
class Planned:
    """The plan of one intent, as JSON, and the pod template made from it.

    basis: None where the spec names no Secret and no ConfigMap, and in what earlier versions kept
    """

    plan: Json
    template: Json
    basis: Basis | None = None

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
        plans, templates, bases, shapes = (_read(data, kind) for kind in ("plan", "template", "basis", "shape"))
        planned = {
            intent: Planned(plan, templates[intent], _basis(bases.get(intent)))
            for intent, plan in plans.items()
            if intent in templates
        }
        return cls(planned, shapes)

    def to_data(self) -> dict[str, str]:
        """The ConfigMap's `data`."""
        data = {f"shape-{model}.json": _write(shape) for model, shape in self.shapes.items()}
        for intent, planned in self.planned.items():
            data[f"plan-{intent}.json"] = _write(_for_earlier_workers(planned.plan))
            data[f"template-{intent}.json"] = _write(planned.template)
            if planned.basis is not None:
                data[f"basis-{intent}.json"] = _write(asdict(planned.basis))
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


def _basis(data: Json | None) -> Basis | None:
    content = (data or {}).get("content")
    return Basis(str(data["spec"]), content) if data and "spec" in data and isinstance(content, dict) else None


def _for_earlier_workers(plan: Json) -> Json:
    """The plan with the names that workers know whose image is pinned to an earlier release."""
    return plan | {earlier: plan[key] for key, earlier in EARLIER_KEYS.items() if key in plan}


def _write(value: Json) -> str:
    return json.dumps(value, indent=1, sort_keys=True)
